"""What do several divisions at once cost, and what do they save?"""

from scalebench import Case, Mesh, Plain, StepPlan, Suite

SUITE = Suite(
    name="mesh",
    question="What do replicas and shards of tensor groups cost in messages and save in memory?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="data-tensor", strategy=Mesh(tensor=2, sequence=True, loss=True)),
        Case(
            name="shard-tensor",
            strategy=Mesh(shard=None, tensor=2, sequence=True, loss=True),
        ),
        Case(name="shard", strategy=Mesh(shard=None), optional=True),
        Case(
            name="shard-tensor-4",
            strategy=Mesh(shard=None, tensor=4, sequence=True, loss=True),
            optional=True,
        ),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
