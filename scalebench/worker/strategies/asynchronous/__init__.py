"""Training without lockstep: ranks train models of their own, and exchange parameters at times."""
