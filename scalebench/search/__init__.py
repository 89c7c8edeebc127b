"""Search: every way to divide one training job over N ranks, its memory, its step, the fastest."""
