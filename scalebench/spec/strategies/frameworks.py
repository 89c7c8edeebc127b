"""Training through other people's frameworks: the same model and batches behind their interface.

Each is set up alike, so that what differs is the framework: the optimizer of the workload, float32
parameters, gradients averaged over the global batch, no clipping, buckets of the same bytes, the
same microbatches. ``as_shipped`` leaves out all of that which the framework has a default for.
"""

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.base import Device
from scalebench.spec.strategies.data_parallel import GATHERS
from scalebench.spec.strategies.execution import Execution

FAIR_BUCKET_MB = 25.0
"""DDP's own default."""

Sharding = Literal["ddp", "fsdp2"]
CLIPS = "DeepSpeed as it is shipped clips gradients to a norm of 1, and one process does not"
ENGINE_REDUCES = "DeepSpeed's engine takes no step without reducing gradients"


class FromFramework(Execution):
    """What all frameworks share.

    Attributes:
        packages: What has to be installed: distribution → versions that the tests run with.
        extra: Name of scalebench's extra that installs it; None: there is none, see ``install``.
        bucket_mb: Size of a gradient bucket in MiB, whatever unit the framework counts in; None:
            its own default.
        accumulate: Microbatches per step; only the last one communicates.
        as_shipped: Leave everything at the framework's defaults: buckets, clipping, overlap.
    """

    packages: ClassVar[dict[str, str]] = {}
    extra: ClassVar[str | None] = None
    bucket_mb: float | None = Field(FAIR_BUCKET_MB, gt=0)
    accumulate: int = Field(1, ge=1)
    as_shipped: bool = False

    @model_validator(mode="after")
    def _is_one_or_the_other(self) -> Self:
        if self.as_shipped and self.bucket_mb is not None:
            raise ValueError("as_shipped leaves the buckets at their default: give bucket_mb=None")
        return self

    @property
    def needs(self) -> dict[str, str]:
        """What has to be installed for this very strategy: distribution → tested version."""
        return self.packages

    @property
    def install(self) -> str:
        """The command that installs it."""
        return f"pip install 'scalebench[{self.extra}]'"

    @property
    def zero_stage(self) -> int:
        """What is divided over the ranks, as a stage of ZeRO: 0 is nothing."""
        return 0

    @property
    def elements_per_bucket(self) -> int | None:
        """Float32 elements of a bucket; None: the framework's own default."""
        return None if self.bucket_mb is None else round(self.bucket_mb * 2**20 / 4)

    @property
    def always_communicates(self) -> str | None:  # type: ignore[override]
        """Why no step of it can do without the other ranks."""
        return GATHERS if self.zero_stage == 3 else None

    def num_parts(self, world_size: int) -> int:
        """Return the microbatches of all ranks together."""
        return world_size * self.accumulate


class Accelerate(FromFramework):
    """Hugging Face Accelerate: ``prepare``, ``accumulate``, ``backward``.

    Attributes:
        plugin: What ``prepare`` wraps the model with.
        stage: Which stage of ZeRO, with the DeepSpeed plug-in.
    """

    kind: Literal["accelerate"] = "accelerate"
    about = "Hugging Face Accelerate: DDP, FSDP2 or DeepSpeed behind prepare()"
    packages: ClassVar[dict[str, str]] = {"accelerate": "1.15.0"}
    extra = "accelerate"
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    plugin: Literal["ddp", "fsdp2", "deepspeed"] = "ddp"
    stage: Literal[0, 1, 2, 3] | None = None

    @model_validator(mode="after")
    def _has_a_stage_with_deepspeed(self) -> Self:
        if (self.plugin == "deepspeed") != (self.stage is not None):
            raise ValueError("stage is for the DeepSpeed plug-in, which needs one: 0, 1, 2 or 3")
        return self

    @property
    def needs(self) -> dict[str, str]:
        """What has to be installed; Accelerate's DeepSpeed plug-in asks for transformers."""
        if self.plugin != "deepspeed":
            return self.packages
        return self.packages | DeepSpeed.packages | {"transformers": "5.23.0"}

    @property
    def install(self) -> str:
        """The command that installs it."""
        both = "accelerate,deepspeed" if self.plugin == "deepspeed" else "accelerate"
        return f"pip install 'scalebench[{both}]'"

    @property
    def zero_stage(self) -> int:
        """What is divided over the ranks, as a stage of ZeRO."""
        return 3 if self.plugin == "fsdp2" else self.stage or 0

    @property
    def always_communicates(self) -> str | None:  # type: ignore[override]
        """Why no step of it can do without the other ranks."""
        return ENGINE_REDUCES if self.plugin == "deepspeed" else super().always_communicates

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        return CLIPS if self.plugin == "deepspeed" and self.as_shipped else None

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device."""
        if self.plugin == "fsdp2" and device == "cpu":
            return (
                "Accelerate shards with FSDP2 on GPUs only: on CPU ranks prepare() ignores the "
                "plug-in and wraps the model in DDP"
            )
        if self.plugin == "fsdp2" and self.accumulate > 1:
            return "accumulate is not supported with FSDP2; leave it out"
        return None


class DeepSpeed(FromFramework):
    """DeepSpeed's engine: ``initialize``, ``backward``, ``step``.

    Source: Rajbhandari et al. 2020 (ZeRO).

    Attributes:
        stage: Which stage of ZeRO: 0 divides nothing, 1 the optimizer's state, 2 the gradients as
            well, 3 the parameters as well.
        offload: Keep the optimizer's state, with stage 3 the parameters as well, in host memory.
    """

    kind: Literal["deepspeed"] = "deepspeed"
    about = "DeepSpeed's engine: ZeRO stages 0 to 3, offload to the host"
    packages: ClassVar[dict[str, str]] = {"deepspeed": "0.19.8"}
    extra = "deepspeed"
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    always_communicates = ENGINE_REDUCES
    stage: Literal[0, 1, 2, 3] = 2
    offload: bool = False

    @property
    def zero_stage(self) -> int:
        """The stage."""
        return self.stage

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        return CLIPS if self.as_shipped else None

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device."""
        if self.offload and not self.stage:
            return "ZeRO stage 0 divides nothing, so there is nothing to offload; choose stage 1-3"
        return None


class Fabric(FromFramework):
    """Lightning Fabric: ``setup``, ``backward``.

    Attributes:
        sharding: DDP, or FSDP2 through ``ModelParallelStrategy``.
    """

    kind: Literal["fabric"] = "fabric"
    about = "Lightning Fabric: DDP, or FSDP2 through ModelParallelStrategy"
    packages: ClassVar[dict[str, str]] = {"lightning": "2.6.6"}
    extra = "lightning"
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    sharding: Sharding = "ddp"

    @property
    def zero_stage(self) -> int:
        """What is divided over the ranks, as a stage of ZeRO."""
        return 3 if self.sharding == "fsdp2" else 0


class FairScale(FromFramework):
    """FairScale: the optimizer's state divided (``OSS``), gradients reduced to their owners.

    Its FSDP needs CUDA. Source: FairScale's documentation, ``ShardedDataParallel``.
    """

    kind: Literal["fairscale"] = "fairscale"
    about = "FairScale: OSS divides the optimizer, ShardedDDP reduces gradients to their owners"
    packages: ClassVar[dict[str, str]] = {"fairscale": "0.4.13"}
    extra = "fairscale"
    operations = ("reduce", "broadcast")
    always_communicates = "OSS broadcasts parameters in every step"

    @property
    def zero_stage(self) -> int:
        """The optimizer's state is divided; gradients are reduced to owners, and kept by all."""
        return 1


class Horovod(FromFramework):
    """Horovod: ``DistributedOptimizer`` all-reduces gradients, fused into one buffer.

    It was last released in 2023 and does not build against torch 2.13 as it is: ``make horovod``
    builds its wheel. Source: Sergeev and Del Balso 2018.

    Attributes:
        compression: Gradients as they are sent.
    """

    kind: Literal["horovod"] = "horovod"
    about = "Horovod: DistributedOptimizer, gradients fused and all-reduced"
    untraced_because = "torch's traces do not show Horovod's operations"
    always_communicates = "Horovod's optimizer reduces gradients in every step"
    packages: ClassVar[dict[str, str]] = {"horovod": "0.28.1"}
    compression: Literal["none", "fp16"] = "none"

    @property
    def install(self) -> str:
        """The command that builds and installs it."""
        return "make horovod"

    @property
    def rounds_parameters(self) -> bool:
        """Whether gradients are rounded on their way."""
        return self.compression == "fp16"
