"""Applications: the command line, the inspector and the Hub."""
