"""Sweeps of collectives, alone and as part of a run."""
