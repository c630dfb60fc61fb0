"""The command line, one file per command; a command loads what it needs when it runs."""
