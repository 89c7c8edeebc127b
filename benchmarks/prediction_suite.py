"""Six jobs from bound by communication to bound by computation, for `benchmarks.prediction`.

On links of 50 Mbit/s and eight hosts, the communication of a step takes 24 times its computation
in the first, and two thirds of it in the last. Together that is half of what a kernel on two cores
is known to forward: at 100 Mbit/s eight links are at that limit, and the first job's step is 13 %
longer than its links say. Buckets of 25 kB were tried, too: at a fifth of a core for each of eight
ranks such a message waits for the processor more than for the link, and no fit of N = 2 and 4 tells
how much (22 % off).
"""

from scalebench import Case, Ddp, StepPlan, Suite

LARGE, SMALL = "benchmarks.prediction_suite:large", "benchmarks.prediction_suite:small"


def large(shard):
    """Return the paced workload with half of its parameters."""
    return _paced("paced-large", 24576, shard)


def small(shard):
    """Return it with an eighth of them."""
    return _paced("paced-small", 6144, shard)


def _paced(name, stage_parameters, shard):
    from scalebench.catalog import PacedShape
    from scalebench.worker.workloads.paced import build_paced

    shape = PacedShape(
        name=name, stages=8, stage_parameters=stage_parameters, sample_s=0.01, batch_size=32
    )
    return build_paced(shape, shard)


SUITE = Suite(
    name="prediction",
    question="Does the cost model predict eight hosts from two and four?",
    cases=(
        Case(name="large-8", strategy=Ddp(), workload=LARGE, batch_size=8),
        Case(name="large-16-buckets", strategy=Ddp(bucket_mb=0.125), workload=LARGE, batch_size=16),
        Case(name="large-40", strategy=Ddp(), workload=LARGE, batch_size=40),
        Case(name="small-16", strategy=Ddp(), workload=SMALL, batch_size=16),
        Case(name="small-40-buckets", strategy=Ddp(bucket_mb=0.05), workload=SMALL, batch_size=40),
        Case(name="small-80", strategy=Ddp(), workload=SMALL, batch_size=80),
    ),
    steps=StepPlan(window_s=2.0, rounds_s=1.0),
    repeats=3,
)
