"""What does dividing the experts of a mixture over the ranks cost, and how evenly are they used?"""

from scalebench import Case, Ddp, Expert, Plain, StepPlan, Suite

SUITE = Suite(
    name="expert",
    question="What do experts on several ranks cost in messages, and how evenly are they used?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="expert", strategy=Expert()),
        Case(name="expert-dropless", strategy=Expert(dropless=True)),
        Case(name="expert-top-1", strategy=Expert(top_k=1)),
        Case(name="expert-capacity-1", strategy=Expert(capacity_factor=1.0), optional=True),
        Case(name="expert-2-ranks", strategy=Expert(size=2), optional=True),
        Case(name="expert-4-ranks", strategy=Expert(size=4), optional=True),
        Case(name="expert-bf16", strategy=Expert(autocast=True), optional=True),
    ),
    workload="gpt-moe",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
