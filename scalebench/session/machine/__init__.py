"""The machine before a run: what it has, what disturbs it, and what a run claims of it."""
