"""What does dividing long sequences over the ranks cost, and what does it save?"""

from scalebench import Case, Context, Plain, StepPlan, Suite

SUITE = Suite(
    name="context",
    question="What does dividing long sequences over the ranks cost, and what memory does it save?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ulysses", strategy=Context(method="ulysses")),
        Case(name="ring", strategy=Context(method="ring")),
        Case(
            name="ulysses-2-groups",
            strategy=Context(size=2, method="ulysses"),
            batch_size=4,
            optional=True,
        ),
        Case(
            name="ring-2-groups",
            strategy=Context(size=2, method="ring"),
            batch_size=4,
            optional=True,
        ),
        Case(
            name="ring-4-groups",
            strategy=Context(size=4, method="ring"),
            batch_size=4,
            optional=True,
        ),
        Case(name="ring-bf16", strategy=Context(method="ring", autocast=True), optional=True),
        Case(
            name="ring-checkpointing",
            strategy=Context(method="ring", checkpointing=True),
            optional=True,
        ),
    ),
    workload="gpt-long",
    steps=StepPlan(window_s=0.4, rounds_s=0.4, min_steps=4),
    repeats=3,
)
