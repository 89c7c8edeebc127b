"""Time to loss: what training reaches, and when."""
