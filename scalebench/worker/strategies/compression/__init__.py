"""Compressed gradients: codecs, what ranks keep between steps, and DDP's hook around them."""
