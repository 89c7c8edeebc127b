"""Which suites there are: files, named strategies, the user's own script."""
