"""What does dividing every layer over the ranks cost, and what does it save?"""

from scalebench import Case, Plain, StepPlan, Suite, Tensor

SUITE = Suite(
    name="tensor",
    question="What does dividing every layer over the ranks cost in messages and save in memory?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="tensor", strategy=Tensor()),
        Case(name="tensor-sequence", strategy=Tensor(sequence=True)),
        Case(name="tensor-sequence-loss", strategy=Tensor(sequence=True, loss=True)),
        Case(name="tensor-loss", strategy=Tensor(loss=True), optional=True),
        Case(
            name="tensor-2-groups",
            strategy=Tensor(size=2, sequence=True, loss=True),
            optional=True,
        ),
        Case(
            name="tensor-4-groups",
            strategy=Tensor(size=4, sequence=True, loss=True),
            optional=True,
        ),
        Case(name="tensor-bf16", strategy=Tensor(autocast=True), optional=True),
        Case(name="tensor-checkpointing", strategy=Tensor(checkpointing=True), optional=True),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
