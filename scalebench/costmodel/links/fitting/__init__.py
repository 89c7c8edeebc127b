"""From timed collectives to latency and bandwidth, regime by regime."""
