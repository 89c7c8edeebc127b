"""Names of the marks that ranks leave in their traces, and that their readers look for."""

STEP = "scalebench.step"
DATA = "scalebench.data"
STAGE = "scalebench.stage"
"""Around the waiting that stands for computation in a paced workload."""
ENCODE = "scalebench.encode"
DECODE = "scalebench.decode"
"""Around a gradient codec; without a profiler a mark costs a few microseconds."""
