"""FSDP or DDP: at which size, and for which memory?"""

from scalebench import Case, Ddp, Fsdp, Fsdp1, Plain, StepPlan, Suite, Zero1

SUITE = Suite(
    name="fsdp",
    question="FSDP or DDP: what does sharding cost in time, and what does it save in memory?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="fsdp", strategy=Fsdp()),
        Case(name="fsdp-shard-grad-op", strategy=Fsdp(reshard_after_forward=False)),
        Case(name="zero1", strategy=Zero1()),
        Case(name="fsdp-no-shard", strategy=Fsdp(shard_size=1), optional=True),
        Case(name="hsdp", strategy=Fsdp(shard_size=2), optional=True),
        Case(name="hsdp-8", strategy=Fsdp(shard_size=8), optional=True),
        Case(name="fsdp-by-size", strategy=Fsdp(min_num_params=100_000), optional=True),
        Case(name="fsdp-prefetch-2", strategy=Fsdp(prefetch=2), optional=True),
        Case(name="fsdp-bf16", strategy=Fsdp(param_dtype="bfloat16"), optional=True),
        Case(name="fsdp-cpu-offload", strategy=Fsdp(cpu_offload=True), optional=True),
        Case(name="fsdp-checkpointing", strategy=Fsdp(checkpointing=True), optional=True),
        Case(name="fsdp-selective", strategy=Fsdp(checkpointing="selective"), optional=True),
        Case(name="fsdp1", strategy=Fsdp1(), optional=True),
        Case(
            name="fsdp1-shard-grad-op", strategy=Fsdp1(reshard_after_forward=False), optional=True
        ),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
