"""A rank that runs the user's own script: its process is started, watched, and its record read."""
