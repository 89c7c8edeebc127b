"""What a run stores, while it goes on and at its end."""
