"""What do several divisions at once cost, and what do they save?"""

from scalebench import Case, Mesh, Plain, StepPlan, Suite

SUITE = Suite(
    name="mesh",
    question="What do several divisions at once cost in messages, and what do they save in memory?",
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
        Case(
            name="shard-tensor-outside",
            strategy=Mesh(
                shard=None,
                tensor=2,
                sequence=True,
                loss=True,
                order=("tensor", "pipeline", "data", "context", "shard"),
            ),
            optional=True,
        ),
        Case(
            name="data-shard-tensor",
            strategy=Mesh(shard=2, tensor=2, sequence=True, loss=True),
            optional=True,
        ),
        Case(
            name="context-tensor",
            strategy=Mesh(context=2, tensor=2, method="ring"),
            optional=True,
        ),
        Case(
            name="pipeline-tensor",
            strategy=Mesh(pipeline=2, tensor=2, microbatches=4, sequence=True, loss=True),
            optional=True,
        ),
        Case(
            name="pipeline-shard-tensor",
            strategy=Mesh(
                pipeline=2, shard=None, tensor=2, microbatches=4, sequence=True, loss=True
            ),
            optional=True,
        ),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
