"""What rows of single strategies say besides."""
