"""Time and memory of one step of a choice: what is predicted, and from what."""
