"""What does a checkpoint cost here, and what does it save when a rank dies?"""

from scalebench import Case, Ddp, Fsdp, Mesh, Plain, Recovery, StepPlan, Suite, Zero1

SUITE = Suite(
    name="recovery",
    question="What does a checkpoint cost here, and how long does it take to continue from one?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="fsdp", strategy=Fsdp()),
        Case(name="zero1", strategy=Zero1()),
        Case(name="mesh", strategy=Mesh(shard=None, tensor=2), optional=True),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.3, trace=False),
    repeats=3,
    recovery=Recovery(faulty_cases=("ddp",)),
)
