"""Models that predict what a run costs, to be compared with what it measured."""
