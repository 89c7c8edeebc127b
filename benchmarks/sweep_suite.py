"""The sweep whose overhead is measured: a baseline and two strategies.

The second strategy stands for any other: what is measured is how many cells are launched, and
with how many ranks, not what they compute.
"""

from scalebench import Case, Ddp, Plain, StepPlan, Suite

SUITE = Suite(
    name="bench-sweep",
    question="What does a sweep cost beyond its measured windows?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="second", strategy=Ddp(bucket_mb=1)),
    ),
    workload="gpt-tiny",
    batch_size=16,
    steps=StepPlan(window_s=1.0),
    repeats=1,
)
