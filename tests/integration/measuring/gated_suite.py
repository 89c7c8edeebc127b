"""DDP whose buckets are as large as the environment says: the name of the case stays the same."""

import os

from scalebench import Case, Ddp, Plain, StepPlan, Suite

SUITE = Suite(
    name="gated",
    question="Does the gate see and explain what changed?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp(bucket_mb=float(os.environ["BUCKET_MB"]))),
    ),
    workload="mlp",
    steps=StepPlan(window_s=0.2, rounds_s=0.5, max_warmup_steps=5),
    repeats=1,
)
