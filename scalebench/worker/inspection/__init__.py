"""What is found out about a case before it is timed: correctness, memory, work per step."""
