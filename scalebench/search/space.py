"""The job that is searched, and its space: every mesh, placement, schedule, batch cut as columns.

Ranks = data × shard × expert × context × tensor × pipeline. Data, shard and expert ranks have
samples of their own; shards divide the model's state by a ZeRO stage, experts divide a mixture's
experts (Narayanan et al. 2021; Rajbhandari et al. 2020; Lepikhin et al. 2020).
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from itertools import product
from math import gcd, prod
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
from pydantic import Field

from scalebench.errors import UsageError
from scalebench.search.candidates import (
    AXES,
    CHECKPOINTING,
    PRECISIONS,
    SCHEDULES,
    Candidates,
    Floats,
)
from scalebench.search.devices.parameters import DeviceModel
from scalebench.search.model import SearchModel
from scalebench.search.prediction.links import SearchLinks
from scalebench.spec import Device
from scalebench.spec.base import Record

CHUNKS = {"interleaved-1f1b": (2, 4), "looped-bfs": (2, 4)}
"""Schedule → stages on each rank that are tried; one for all others."""

DEFAULT_BUCKET_MB = 25.0


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


class Mesh(NamedTuple):
    """One mesh, in the order of `AXES`."""

    tensor: int
    context: int
    expert: int
    shard: int
    data: int
    pipeline: int


def divisors(number: int) -> list[int]:
    """Return all divisors, ascending."""
    return [n for n in range(1, number + 1) if number % n == 0]


def meshes(job: Job) -> list[Mesh]:
    """Return every mesh of the job's ranks that its model and batch allow.

    Raises:
        UsageError: There is none; the text says what stands in the way.
    """
    found = [mesh for mesh in _every_mesh(job) if why_not_mesh(job, mesh) is None]
    if not found:
        raise UsageError(why_no_mesh(job))
    return sorted(found)


def refused_meshes(job: Job) -> dict[str, int]:
    """Return why meshes are not in the space, and how many for each reason."""
    reasons = (why_not_mesh(job, mesh) for mesh in _every_mesh(job))
    return dict(Counter(reason for reason in reasons if reason is not None).most_common())


def _every_mesh(job: Job) -> Iterator[Mesh]:
    """Yield every way to write N as a product of the axes; experts only of a mixture."""
    allowed = set(job.axes) - (set() if job.model.experts > 1 else {"expert"})

    def sizes(axis: str, ranks: int) -> list[int]:
        return divisors(ranks) if axis in allowed else [1]

    n = job.world_size
    for tensor in sizes("tensor", n):
        for context in sizes("context", n // tensor):
            for pipeline in sizes("pipeline", n // tensor // context):
                replicas = n // tensor // context // pipeline
                for expert in sizes("expert", replicas):
                    for shard in sizes("shard", replicas // expert):
                        data = replicas // expert // shard
                        if data == 1 or "data" in allowed:
                            yield Mesh(tensor, context, expert, shard, data, pipeline)


def why_not_mesh(job: Job, mesh: Mesh) -> str | None:
    """Say which number of the model or the batch a mesh does not divide; None: it fits."""
    model = job.model
    replicas = mesh.data * mesh.shard * mesh.expert
    if model.heads % mesh.tensor or model.vocabulary % mesh.tensor:
        return "tensor does not divide heads or vocabulary"
    if not _context_methods(job, mesh.tensor, mesh.context):
        return "context does not divide heads or tokens, or the model has experts"
    if mesh.pipeline > model.layers:
        return "more stages than layers"
    if job.batch % replicas:
        return "data, shard and expert ranks do not divide the batch"
    if mesh.pipeline > 1 and job.batch // replicas < mesh.pipeline:
        return "fewer samples than stages, so no schedule fills the pipeline"
    if model.experts % mesh.expert:
        return "expert ranks do not divide the experts"
    return None


def why_no_mesh(job: Job) -> str:
    """Say why no mesh has so many ranks, and which number near it would do."""
    model = job.model
    limits = (
        f"{model.name} has {model.heads} heads, {model.layers} layers and {model.context} tokens "
        f"a sample, and the global batch has {job.batch} samples"
    )
    smaller = (replace(job, world_size=n) for n in range(job.world_size - 1, 0, -1))
    fits = next(
        one.world_size
        for one in smaller
        if any(why_not_mesh(one, mesh) is None for mesh in _every_mesh(one))
    )
    return (
        f"--gpus {job.world_size}: no mesh divides the job into so many parts: {limits}. Give "
        f"--gpus {fits}, or another --batch-size."
    )


def _context_methods(job: Job, tensor: int, context: int) -> list[int]:
    """Return how a group can divide the sequence: 0 heads are exchanged, 1 a ring."""
    if context == 1:
        return [0]
    model = job.model
    if model.context % context or model.experts > 1:
        return []
    heads = [0] if model.heads % (tensor * context) == 0 else []
    return heads + ([1] if model.context % (2 * context) == 0 else [])


@cache
def placements(mesh: Mesh, ranks_per_node: int) -> tuple[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return the placements that differ: ranks of each axis that share a node, and the order.

    An order of the axes fills the nodes from its first axis on. Orders that put the same numbers
    of each axis on a node are one placement; the most usual stands for them.
    """
    several = [axis for axis, size in enumerate(mesh) if size > 1]
    found: dict[tuple[int, ...], tuple[int, ...]] = {}

    def fill(order: tuple[int, ...], near: tuple[int, ...], room: int) -> None:
        left = [axis for axis in several if axis not in order]
        if room == 1 or not left:
            found.setdefault(near, (*order, *left))
            return
        for axis in left:
            here = gcd(mesh[axis], room)
            inside = (*near[:axis], here, *near[axis + 1 :])
            full = here < mesh[axis]  # what does not fit goes to other nodes, and nothing is left
            fill((*order, axis), inside, 1 if full else room // here)

    fill((), (1,) * len(AXES), min(ranks_per_node, prod(mesh)))
    return tuple(found.items())  # type: ignore[return-value]


def order_number(order: Sequence[int]) -> int:
    """Return an order of axes as one number."""
    return int("1" + "".join(map(str, order)))


def order_names(number: int) -> list[str]:
    """Return the axes of such a number, from the inside out."""
    return [AXES[int(digit)] for digit in str(number)[1:]]


def _rows(job: Job, found: Sequence[Mesh]) -> Iterator[tuple[int, ...]]:
    """Yield every mesh with its placements and cuts of a rank's batch."""
    for mesh in found:
        batch = job.batch // (mesh.data * mesh.shard * mesh.expert)
        for near, order in placements(mesh, job.links.ranks_per_node):
            number = order_number(order)
            for cut in divisors(batch):
                yield (*mesh, *near, number, cut)


def _options(job: Job, kind: tuple[bool, ...]) -> npt.NDArray[np.float64]:
    """Return what can be chosen on a kind of mesh: with stages, with shards, with buckets."""
    staged, sharded, bucketed = kind
    schedules = [(0, 1)]
    if staged:
        schedules = [
            (number, chunks)
            for number, name in enumerate(SCHEDULES)
            if number
            for chunks in CHUNKS.get(name, (1,))
        ]
    zero = job.zero_stages if sharded else (0,)
    buckets = job.buckets_mb if bucketed else (DEFAULT_BUCKET_MB,)
    kept = [CHECKPOINTING.index(name) for name in job.checkpointing]
    precisions = [PRECISIONS.index(name) for name in job.speed.precisions]
    every = [
        (*schedule, *rest)
        for schedule, *rest in product(schedules, zero, kept, precisions, buckets, (0, 1))
    ]
    return np.array(every, dtype=float)


def candidates(job: Job, found: Sequence[Mesh], chunk: int = 2**17) -> Iterator[Candidates]:
    """Yield the whole space in chunks of about this many, and none that is empty.

    Args:
        job: What is searched.
        found: Its meshes.
        chunk: Candidates that are held at once.
    """
    rows = np.array(list(_rows(job, found)), dtype=np.int64)
    staged, sharded = rows[:, 5] > 1, rows[:, 3] > 1
    divided = (rows[:, 0] > 1) | (rows[:, 1] > 1) | staged
    bucketed = ~divided & (rows[:, 2:5].prod(axis=1) > 1)
    for kind in product((False, True), repeat=3):
        mine = rows[(staged == kind[0]) & (sharded == kind[1]) & (bucketed == kind[2])]
        options = _options(job, kind)
        size = max(1, chunk // len(options))
        for begin in range(0, len(mine), size):
            crossed = _crossed(mine[begin : begin + size], options)
            allowed = _allowed(job, crossed)
            if allowed.any():
                yield crossed.take(allowed)


def _crossed(rows: npt.NDArray[np.int64], options: npt.NDArray[np.float64]) -> Candidates:
    left = np.repeat(rows, len(options), axis=0)
    right = np.tile(options, (len(rows), 1))
    whole = right.astype(np.int64)
    names = [f.name for f in fields(Candidates)]
    columns: dict[str, Any] = dict(zip(names, left.T[:13], strict=False))
    chosen = ("schedule", "chunks", "zero", "checkpointing", "precision", "bucket_mb", "ring")
    columns |= dict(zip(chosen, whole.T, strict=True))
    columns |= {"microbatches": left[:, 13], "bucket_mb": right[:, 5]}
    return Candidates(**columns)


def _allowed(job: Job, of: Candidates) -> npt.NDArray[np.bool_]:
    """Return which of them there are: schedules have their rules, buckets their stages."""
    model = job.model
    staged = of.pipeline > 1
    interleaved = of.schedule == SCHEDULES.index("interleaved-1f1b")
    fine = ~staged | (of.microbatches >= of.pipeline)
    fine &= of.pipeline * of.chunks <= model.layers
    fine &= ~interleaved | (of.microbatches % of.pipeline == 0)
    rounds = np.maximum(of.microbatches // of.pipeline, 1)
    zero_bubble = of.schedule == SCHEDULES.index("zero-bubble")
    fine &= ~zero_bubble | (of.microbatches % rounds == 0)
    # torch refuses a second backward call of what selective checkpointing computed again.
    fine &= ~zero_bubble | (of.checkpointing != CHECKPOINTING.index("selective"))
    heads = (model.heads % (of.tensor * of.context)) == 0
    ring = (of.context > 1) & (model.context % (2 * of.context) == 0)
    fine &= np.where(of.ring == 1, ring, heads | (of.context == 1))
    # Buckets are of gradients that are all-reduced; a sharded strategy has its own groups.
    fine &= (of.zero <= 1) | (of.bucket_mb == DEFAULT_BUCKET_MB)
    return fine
