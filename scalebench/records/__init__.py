"""What stands in a run folder: the types of its files, and how they are written and read."""
