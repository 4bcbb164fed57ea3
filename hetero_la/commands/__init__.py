"""What the command line does, one module a command; `hetero_la.cli` parses the arguments."""
