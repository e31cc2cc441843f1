"""Experiments: arms and seeds of a comparison, run one after the other and written to one result."""
