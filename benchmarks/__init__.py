"""What scalebench itself costs, measured. Run by ``make bench``."""
