"""Which framework is fastest, and takes the least memory, for the same model and batches?"""

from scalebench import (
    Accelerate,
    Case,
    Ddp,
    DeepSpeed,
    Fabric,
    FairScale,
    Fsdp,
    Horovod,
    Plain,
    StepPlan,
    Suite,
    Zero1,
)

OF_TORCH = {"plain": Plain(), "ddp": Ddp(), "fsdp": Fsdp(), "zero1": Zero1()}
DEFAULT = {
    "accelerate-ddp": Accelerate(),
    "accelerate-fsdp2": Accelerate(plugin="fsdp2"),
    "accelerate-zero2": Accelerate(plugin="deepspeed", stage=2),
    "fabric-ddp": Fabric(),
    "fabric-fsdp2": Fabric(sharding="fsdp2"),
    "deepspeed-zero0": DeepSpeed(stage=0),
    "deepspeed-zero1": DeepSpeed(stage=1),
    "deepspeed-zero2": DeepSpeed(stage=2),
    "deepspeed-zero3": DeepSpeed(stage=3),
    "fairscale": FairScale(),
    "horovod": Horovod(),
}
OPTIONAL = {
    "deepspeed-zero2-offload": DeepSpeed(stage=2, offload=True),
    "deepspeed-zero3-offload": DeepSpeed(stage=3, offload=True),
    "deepspeed-zero2-accumulate-4": DeepSpeed(stage=2, accumulate=4),
    "accelerate-ddp-accumulate-4": Accelerate(accumulate=4),
    "fabric-ddp-accumulate-4": Fabric(accumulate=4),
    "horovod-fp16": Horovod(compression="fp16"),
    "accelerate-ddp-default": Accelerate(bucket_mb=None, as_shipped=True),
    "fabric-ddp-default": Fabric(bucket_mb=None, as_shipped=True),
    "deepspeed-zero1-default": DeepSpeed(stage=1, bucket_mb=None, as_shipped=True),
    "deepspeed-zero2-default": DeepSpeed(stage=2, bucket_mb=None, as_shipped=True),
    "deepspeed-zero3-default": DeepSpeed(stage=3, bucket_mb=None, as_shipped=True),
    "fairscale-default": FairScale(bucket_mb=None, as_shipped=True),
    "horovod-default": Horovod(bucket_mb=None, as_shipped=True),
}

SUITE = Suite(
    name="frameworks",
    question="Which framework trains the same model fastest here, and in the least memory?",
    cases=tuple(
        Case(name=name, strategy=strategy, optional=name in OPTIONAL)
        for name, strategy in (OF_TORCH | DEFAULT | OPTIONAL).items()
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.4, rounds_s=0.4),
    repeats=3,
)
