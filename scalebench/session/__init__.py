"""Carries a command out: plans, launches, measures, stores."""
