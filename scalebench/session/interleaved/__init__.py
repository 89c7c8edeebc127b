"""Two versions measured alternately, until a decision is reached."""
