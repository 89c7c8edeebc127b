"""Six jobs from bound by communication to bound by computation, for `benchmarks.prediction`.

On links of 100 Mbit/s and eight hosts, the communication of a step takes 24 times its computation
in the first, and a third of it in the last.
"""

from scalebench import Case, Ddp, StepPlan, Suite

LARGE, SMALL = "paced", "benchmarks.prediction_suite:small"


def small(shard):
    """Return the paced workload with an eighth of its parameters."""
    from scalebench.catalog import PacedShape
    from scalebench.worker.workloads.paced import build_paced

    shape = PacedShape(
        name="paced-small", stages=8, stage_parameters=6144, sample_s=0.01, batch_size=32
    )
    return build_paced(shape, shard)


SUITE = Suite(
    name="prediction",
    question="Does the cost model predict eight hosts from two and four?",
    cases=(
        Case(name="large-8", strategy=Ddp(), workload=LARGE, batch_size=8),
        Case(name="large-16-buckets", strategy=Ddp(bucket_mb=0.25), workload=LARGE, batch_size=16),
        Case(name="large-40", strategy=Ddp(), workload=LARGE, batch_size=40),
        Case(name="small-16", strategy=Ddp(), workload=SMALL, batch_size=16),
        Case(name="small-40-buckets", strategy=Ddp(bucket_mb=0.05), workload=SMALL, batch_size=40),
        Case(name="small-80", strategy=Ddp(), workload=SMALL, batch_size=80),
    ),
    steps=StepPlan(window_s=2.0, rounds_s=1.0),
    repeats=3,
)
