"""plain_ddp.py with a delay in rank 1's loading, and time to trace many steps of it."""

from scalebench import Case, StepPlan, Suite
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget

DELAYED = ("--batch", "16", "--slow-rank", "1", "--delay", "0.05")

SUITE = Suite(
    name="plain-ddp",
    question="Where does a delay in one rank's loading go?",
    cases=(Case(name="script", strategy=Script()),),
    workload="plain-ddp",
    scaling="weak",
    script=ScriptTarget(name="plain-ddp", program="plain_ddp.py", arguments=DELAYED),
    steps=StepPlan(window_s=0.2, rounds_s=3.0),
    repeats=1,
)
