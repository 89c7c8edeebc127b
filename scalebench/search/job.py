"""The job that is searched: model, ranks, batch, memory, and how fast a rank computes."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from scalebench.records.base import Record
from scalebench.search.candidates import CHECKPOINTING, PRECISIONS, Candidates, Floats
from scalebench.search.devices.parameters import DeviceModel
from scalebench.search.model import SearchModel
from scalebench.search.prediction.links import SearchLinks
from scalebench.spec import Device


@dataclass(frozen=True)
class Recomputing:
    """What computing the blocks again takes, for a microbatch of the whole model.

    Attributes:
        forwards: In forward passes of its samples.
        pass_s: Apart from its samples, seconds.
    """

    forwards: float
    pass_s: float = 0.0


ASSUMED_RECOMPUTING = {"selective": Recomputing(0.0), "full": Recomputing(1.0)}
"""Where nothing was measured: selective computes no matrix product again, full all of them."""


@dataclass(frozen=True)
class ComputeSpeed:
    """How long a rank computes.

    Attributes:
        flop_s: Precision → seconds for one FLOP of the model's forward and backward pass.
        pass_s: What each microbatch costs apart from its FLOPs: starting operators, seconds.
        axis_s: Axis → what its machinery costs a rank for each microbatch of the whole model, and
            for each stage of a rank with ``pipeline``, seconds; missing: not known, none is added.
        update_s: The optimizer's step on the whole model, seconds; a rank with a part of the
            parameters takes that part of it.
        described: Where the figures are from.
        peak_flops: Precision → published peak of the device, FLOP/s; empty: not known.
        split_s: What a zero-bubble schedule's backward pass in two calls takes longer than one, for
            each microbatch of the whole model, seconds; 0: not known.
        recomputing: Checkpointing → what was measured of it; missing: `ASSUMED_RECOMPUTING`.
        device: Its operators one by one; None: the figures above say it all.
    """

    flop_s: Mapping[str, float]
    pass_s: float
    update_s: float
    described: str
    peak_flops: Mapping[str, float]
    axis_s: Mapping[str, float] = field(default_factory=dict)
    split_s: float = 0.0
    recomputing: Mapping[str, Recomputing] = field(default_factory=dict)
    device: DeviceModel | None = None

    @property
    def precisions(self) -> tuple[str, ...]:
        """Precisions whose speed is known."""
        return tuple(name for name in PRECISIONS if name in self.flop_s)


class Framework(Record):
    """What frameworks do differently.

    Attributes:
        launch: How operators start: ``eager``, ``compiled``, or ``graphs`` that were captured.
        attention: ``flash`` (FlashAttention-2), ``triton`` (the first one, in Triton), ``hopper``
            (FlashAttention-3 or cuDNN), or ``stored``: its scores are written to memory.
        matrices: Format of the blocks' matrix products: ``bfloat16``, ``fp8`` or ``fp4``.
        stages: Of a pipeline: ``balanced`` by their work, ``equal`` numbers of layers, or
            ``filled``: one after the other with its part of the parameters (nanotron).
        overlap: Whether ZeRO-1's gathers, and gradients of meshes, hide behind passes.
        gradient_bytes: Of a gradient on the wire.
        state: Kept in ``float32``; ``mixed``: 16-bit parameters with 32-bit gradients, copies and
            moments (Megatron-LM); ``accumulated``: gradients in 16 bits, too (nanotron).
        gathered: What tensor groups gather of a divided sequence is gathered ``again`` in backward,
            or ``stored``.
        reserved: Memory that the allocator reserves for activations, over what they fill; whole
            tensors that wait for messages come on top, unless it is 1.
    """

    launch: Literal["eager", "compiled", "graphs"] = "eager"
    attention: Literal["flash", "triton", "hopper", "stored"] = "flash"
    matrices: Literal["bfloat16", "fp8", "fp4"] = "bfloat16"
    stages: Literal["balanced", "equal", "filled"] = "balanced"
    overlap: bool = False
    gradient_bytes: int = Field(4, ge=1, le=4)
    state: Literal["float32", "mixed", "accumulated"] = "float32"
    gathered: Literal["again", "stored"] = "again"
    reserved: float = Field(1.0, ge=1, le=3)


USUAL = Framework()


@dataclass(frozen=True)
class Job:
    """What a search is asked.

    Attributes:
        world_size: N.
        batch: Global batch, samples.
        memory_limit_bytes: Of a rank; None: whatever it takes.
        margin: What a peak may exceed its prediction by, a ratio; memory is compared with it.
        held_bytes: What a rank holds besides, its data, bytes.
        activation_ratio: Measured over counted activations of this machine; 1: not measured.
        overlaps: Whether a sharded strategy gathers ahead of the computation: on a GPU.
        sequence: Whether tensor groups divide the sequence as well (Korthikanti et al. 2022).
        scatters_messages: Whether each rank of a tensor group sends a part of a message between
            stages, and the group that receives gathers it (Narayanan et al. 2021, §4.1). Where
            ``sequence`` holds, messages are parts in any case, and nothing is gathered.
        selective_sends_again: Whether selective checkpointing sends a group's messages once more,
            as torch's does; Megatron-LM's computes attention alone again, in which none is sent
            (Korthikanti et al. 2022, §5).
        buckets_mb: Sizes of gradient buckets to try, MiB.
        receives_ahead: Whether a pipeline's rank has buffers for all of its microbatches at once,
            as torch's has; otherwise for those in flight.
        gathered_bytes_each: Of a parameter, as a sharded strategy gathers it and computes with it:
            4 under autocast, 2 where parameters are cast to 16 bits before they are sent.
        axes: Of the mesh, that may have several ranks.
        zero_stages: That shards may have.
        checkpointing: That is tried.
        framework: Options of the framework.
        corrected: Measured over predicted steps of candidates, as far as it is known.
    """

    model: SearchModel
    world_size: int
    batch: int
    speed: ComputeSpeed
    links: SearchLinks
    device: Device = "cpu"
    memory_limit_bytes: int | None = None
    margin: float = 0.0
    held_bytes: float = 0.0
    activation_ratio: float = 1.0
    sequence: bool = True
    scatters_messages: bool = False
    selective_sends_again: bool = True
    buckets_mb: tuple[float, ...] = (1.0, 5.0, 25.0)
    receives_ahead: bool = True
    gathered_bytes_each: int = 4
    axes: tuple[str, ...] = ("tensor", "context", "expert", "shard", "data", "pipeline")
    zero_stages: tuple[int, ...] = (1, 2, 3)
    checkpointing: tuple[str, ...] = CHECKPOINTING
    framework: Framework = USUAL
    corrected: "Callable[[Job, Candidates], Floats] | None" = None

    @property
    def overlaps(self) -> bool:
        """Whether gathers run ahead of the computation."""
        return self.device == "cuda"

    @property
    def hides(self) -> float:
        """The part of a pass behind which messages of other operations hide."""
        return 1.0 if self.speed.device is None else self.speed.device.values.overlap
