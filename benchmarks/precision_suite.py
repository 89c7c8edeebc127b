"""Plain training and DDP: the smallest question about scaling, asked as precisely as can be."""

from scalebench import Case, Ddp, Plain, StepPlan, Suite

SUITE = Suite(
    name="bench-precision",
    question="How efficient is DDP on two ranks?",
    cases=(Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())),
    workload="gpt-tiny",
    batch_size=16,
    steps=StepPlan(window_s=1.0),
    repeats=3,
)
