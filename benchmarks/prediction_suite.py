"""Six jobs from bound by communication to bound by computation, for `benchmarks.prediction`.

On links of 50 Mbit/s and eight hosts, the communication of a step takes 24 times its computation
in the first, and two thirds of it in the last. Together that is half of what a kernel on two cores
is known to forward. What a rank sends in a step is many times what a shaped link lets through at
once after an idle moment (32 kB): with half of these gradients a step of ``small-16`` is 13 %
shorter than its links say. Buckets of 25 kB were tried, too: at a fifth of a core for each of eight
ranks such a message waits for the processor more than for the link, and no fit of N = 2 and 4 tells
how much (22 % off).
"""

from scalebench import Case, Ddp, StepPlan, Suite

LARGE, SMALL = "benchmarks.prediction_suite:large", "benchmarks.prediction_suite:small"


def large(shard):
    """Return the paced workload, at two hundredths of a second a sample."""
    return _paced("paced-large", 49152, shard)


def small(shard):
    """Return it with a quarter of its parameters."""
    return _paced("paced-small", 12288, shard)


def _paced(name, stage_parameters, shard):
    from scalebench.spec.presets import PacedShape
    from scalebench.worker.workloads.loaded import build_paced

    shape = PacedShape(
        name=name, stages=8, stage_parameters=stage_parameters, sample_s=0.02, batch_size=32
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
        Case(name="small-40-buckets", strategy=Ddp(bucket_mb=0.1), workload=SMALL, batch_size=40),
        Case(name="small-80", strategy=Ddp(), workload=SMALL, batch_size=80),
    ),
    steps=StepPlan(window_s=3.0, rounds_s=1.0),
    repeats=3,
)
