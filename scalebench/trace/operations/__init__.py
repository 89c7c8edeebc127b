"""What an event of a trace is: a collective, a kernel, a phase of the step; what belongs to it."""
