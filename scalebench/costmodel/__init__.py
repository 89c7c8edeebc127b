"""Models that predict what a run costs, to be held against what it measured."""
