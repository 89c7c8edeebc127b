"""Checkpoints: where they lie, what is in them, how they are saved and loaded."""
