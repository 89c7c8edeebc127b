"""Models whose layers are divided: what their ranks send, operation by operation."""
