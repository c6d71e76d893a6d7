"""Training from Python, by the path of the command line: ``hydrl.train`` and ``Run``."""
