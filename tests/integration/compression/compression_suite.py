"""A suite of few cases, and one that cannot be: copied next to the run."""

from scalebench import Case, Compressed, Plain, Suite

SUITE = Suite(
    name="squeezed",
    question="Does the whole way from hook to table work?",
    workload="mlp-tiny",
    batch_size=32,
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="none", strategy=Compressed(method="none", bucket_mb=0.1)),
        Case(name="noop", strategy=Compressed(method="noop", bucket_mb=0.1)),
        Case(name="topk", strategy=Compressed(method="top-k", ratio=0.05, bucket_mb=0.1)),
        Case(name="powersgd", strategy=Compressed(method="powersgd", start_step=2, bucket_mb=0.1)),
        Case(name="batched", strategy=Compressed(method="powersgd-batched"), optional=True),
    ),
    repeats=1,
)
