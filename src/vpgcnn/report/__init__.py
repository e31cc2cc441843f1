"""Reports: figures and pages made from plain data."""
