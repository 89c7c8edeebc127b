"""How large is the bubble of a pipeline here, and which schedule makes the best of it?"""

from scalebench import Case, LayerWise, Pipeline, Plain, StepPlan, Suite

SUITE = Suite(
    name="pipeline",
    question="How well do pipelines scale here, and which schedule has the smallest bubble?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="gpipe", strategy=Pipeline(schedule="gpipe", microbatches=4)),
        Case(name="1f1b", strategy=Pipeline(schedule="1f1b", microbatches=4)),
        Case(
            name="interleaved-1f1b",
            strategy=Pipeline(schedule="interleaved-1f1b", microbatches=4, chunks=2),
        ),
        Case(name="layer-by-layer", strategy=LayerWise(), optional=True),
        Case(name="layer-by-layer-2", strategy=LayerWise(size=2), optional=True),
        Case(
            name="zero-bubble",
            strategy=Pipeline(schedule="zero-bubble", microbatches=4),
            optional=True,
        ),
        Case(
            name="looped-bfs",
            strategy=Pipeline(schedule="looped-bfs", microbatches=4, chunks=2),
            optional=True,
        ),
        Case(name="zbv", strategy=Pipeline(schedule="zbv", chunks=2), optional=True),
        Case(name="dualpipev", strategy=Pipeline(schedule="dualpipev", chunks=2), optional=True),
        Case(name="1f1b-8", strategy=Pipeline(schedule="1f1b", microbatches=8), optional=True),
        Case(name="1f1b-16", strategy=Pipeline(schedule="1f1b", microbatches=16), optional=True),
        Case(
            name="1f1b-measured",
            strategy=Pipeline(schedule="1f1b", microbatches=4, split="measured"),
            optional=True,
        ),
        Case(
            name="gpipe-unbalanced",
            strategy=Pipeline(schedule="gpipe", microbatches=4, split="unbalanced"),
            optional=True,
        ),
        Case(
            name="pipelines-2",
            strategy=Pipeline(schedule="1f1b", microbatches=4, data_parallel=2),
            optional=True,
        ),
    ),
    workload="gpt-deep",
    steps=StepPlan(window_s=0.4, min_steps=8, rounds_s=0.8),
    repeats=3,
)
