"""The strategies of the textbook table, on one model and the same global batch at every size."""

from scalebench import Case, Ddp, Fsdp, Mesh, Plain, StepPlan, Suite, Zero1

SUITE = Suite(
    name="textbook",
    question="What do the usual strategies save in memory, and what speedup is left?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="zero1", strategy=Zero1()),
        Case(name="fsdp", strategy=Fsdp()),
        Case(name="data-tensor", strategy=Mesh(tensor=2, sequence=True, loss=True)),
        Case(name="shard-tensor", strategy=Mesh(shard=None, tensor=2, sequence=True, loss=True)),
    ),
    workload="gpt-tiny",
    batch_size=32,
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
