"""What communication should cost: laws of collectives, and links that sweeps were fitted to."""
