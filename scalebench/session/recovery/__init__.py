"""What a run with checkpoints needs around its launches."""
