"""Search carried out: find or make the measurement it starts from, and measure what it chose."""
