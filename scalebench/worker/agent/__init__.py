"""Ranks of a world that another launcher has started: they are told over a store what to do."""
