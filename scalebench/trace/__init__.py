"""What a trace shows of one rank: its communication, its computation, and both at once."""
