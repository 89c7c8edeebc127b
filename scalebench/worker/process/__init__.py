"""A rank as a process: its place, its set-up, its connection to the others, its failures."""
