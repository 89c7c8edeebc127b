"""How well does DistributedDataParallel scale, and do bucket size and accumulation matter?"""

from scalebench import Case, Ddp, Loader, Plain, StepPlan, Suite

SUITE = Suite(
    name="ddp",
    question="How well does DDP scale here, and do bucket size and accumulation matter?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="ddp-bucket-1mb", strategy=Ddp(bucket_mb=1)),
        Case(name="ddp-accumulate-4", strategy=Ddp(accumulate=4)),
        Case(name="ddp-bucket-5mb", strategy=Ddp(bucket_mb=5), optional=True),
        Case(name="ddp-bucket-100mb", strategy=Ddp(bucket_mb=100), optional=True),
        Case(name="ddp-accumulate-2", strategy=Ddp(accumulate=2), optional=True),
        Case(name="ddp-static-graph", strategy=Ddp(static_graph=True), optional=True),
        Case(name="ddp-balanced", strategy=Ddp(balance="measured"), optional=True),
        Case(name="ddp-bf16", strategy=Ddp(autocast=True), optional=True),
        Case(name="ddp-checkpointing", strategy=Ddp(checkpointing=True), optional=True),
        Case(
            name="ddp-loader",
            strategy=Ddp(),
            loader=Loader(num_workers=2, pin_memory=True, persistent_workers=True),
            optional=True,
        ),
        Case(name="ddp-loader-inline", strategy=Ddp(), loader=Loader(), optional=True),
    ),
    workload="gpt",
    steps=StepPlan(window_s=1.0),
    repeats=3,
)
