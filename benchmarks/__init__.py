"""What scalebench itself costs, measured. Run by ``make bench`` and ``make bench-sweep``."""
