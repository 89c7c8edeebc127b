"""DDP with one bucket for all gradients, and with one for every layer."""

from scalebench import Case, Ddp, Plain, StepPlan, Suite

SUITE = Suite(
    name="planted",
    question="Is the time that was planted found, and under its right name?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="one-bucket", strategy=Ddp()),
        Case(
            name="many-buckets",
            strategy=Ddp(bucket_mb=0.1, gradient_as_bucket_view=False),
            optional=True,
        ),
    ),
    workload="mlp",
    steps=StepPlan(window_s=0.5, rounds_s=3.0, max_warmup_steps=20),
    repeats=1,
)
