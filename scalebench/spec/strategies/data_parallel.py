"""Data parallel strategies, and the methods that compress their gradients, as data."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from scalebench.errors import unknown_name
from scalebench.spec.base import Device, FloatDtype
from scalebench.spec.strategies.execution import Execution, why_not_groups

Settings = Mapping[str, Any]

Communication = Literal["all_reduce", "all_gather", "none"]
GATHERS = "parameters are gathered in every step, whether gradients are reduced or not"


@dataclass(frozen=True)
class Method:
    """A method.

    Attributes:
        about: What it sends, a few words.
        collective: How its main part is communicated.
        defaults: Parameter → the value it has when none is given; no other is accepted.
        of_torch: torch's own hook: encoding and decoding cannot be separated from outside.
    """

    about: str
    collective: Communication
    defaults: Settings
    of_torch: bool = False


METHODS: dict[str, Method] = {
    "none": Method("torch's all-reduce of float32", "all_reduce", {}, of_torch=True),
    "noop": Method("nothing is sent: the bound", "none", {}),
    "fp16": Method("half precision", "all_reduce", {"error_feedback": False}),
    "bf16": Method("bfloat16", "all_reduce", {"error_feedback": False}),
    "quantise": Method(
        "bits evenly spaced between a chunk's extremes",
        "all_gather",
        {"bits": 8, "chunk": 1024, "rounding": "nearest", "error_feedback": False},
    ),
    "sign": Method(
        "one bit, and a size per chunk", "all_gather", {"chunk": 1024, "error_feedback": True}
    ),
    "terngrad": Method(
        "minus, zero or plus, chosen at random",
        "all_gather",
        {"chunk": 1024, "error_feedback": False},
    ),
    "qsgd": Method(
        "a level of the chunk's norm, chosen at random",
        "all_gather",
        {"bits": 4, "chunk": 256, "error_feedback": False},
    ),
    "top-k": Method(
        "the largest elements, with indices", "all_gather", {"ratio": 0.01, "error_feedback": True}
    ),
    "random-k": Method(
        "elements at shared random indices", "all_reduce", {"ratio": 0.01, "error_feedback": True}
    ),
    "random-projection": Method(
        "a subsampled randomized Hadamard transform, the same on all ranks",
        "all_reduce",
        {"ratio": 0.1, "error_feedback": True},
    ),
    "threshold": Method(
        "elements that reach a threshold, with indices",
        "all_gather",
        {"threshold": 1e-3, "error_feedback": True},
    ),
    "dgc": Method(
        "top-k of the momentum",
        "all_gather",
        {"ratio": 0.01, "momentum": 0.9, "clip_norm": 1.0, "warmup_steps": 4},
    ),
    "powersgd": Method(
        "matrices of low rank, torch's hook",
        "all_reduce",
        {"rank": 2, "start_step": 2, "error_feedback": True},
        of_torch=True,
    ),
    "powersgd-batched": Method(
        "the bucket as one matrix of low rank, torch's hook",
        "all_reduce",
        {"rank": 2, "start_step": 2, "error_feedback": True},
        of_torch=True,
    ),
    "count-sketch": Method(
        "a count sketch, then the elements it shows to be large",
        "all_reduce",
        {"rows": 3, "columns_per_kept": 4, "ratio": 0.01, "error_feedback": True},
    ),
}
"""Name → method: the only list of them."""

FLOAT32_BITS = 32


def nominal_ratio(method: str, settings: Settings) -> float | None:
    """Return what a method's name promises: bits over float32's, scales and indices apart.

    None: it promises nothing that does not depend on the values or the shapes.
    """
    if method in ("fp16", "bf16"):
        return 16 / FLOAT32_BITS
    if method in ("none", "noop"):
        return 1.0 if method == "none" else 0.0
    bits = {"sign": 1, "terngrad": 2}.get(method, settings.get("bits"))
    if bits is not None:
        return float(bits) / FLOAT32_BITS
    ratio = settings.get("ratio")
    return None if ratio is None else float(ratio)


def first_compressed_step(settings: Settings) -> int:
    """Return the step from which on a method compresses as far as it was asked to."""
    return int(settings.get("start_step") or settings.get("warmup_steps") or 0)


def vectors_kept(settings: Settings) -> int:
    """Return how many float32 per parameter a rank keeps between steps: velocity and residual."""
    return 2 if "momentum" in settings else int(bool(settings.get("error_feedback")))


VALID: dict[str, tuple[Callable[[Any], bool], str]] = {
    "bits": (lambda x: 1 <= x <= 8, "a whole number from 1 to 8"),
    "ratio": (lambda x: 0 < x <= 1, "more than 0 and at most 1"),
    "chunk": (lambda x: x >= 8 and x % 8 == 0, "a multiple of 8"),
    "rank": (lambda x: x >= 1, "at least 1"),
    "start_step": (lambda x: x >= 2, "at least 2: DDP rebuilds its buckets before that"),
    "threshold": (lambda x: 0 < x < float("inf"), "more than 0"),
    "momentum": (lambda x: 0 <= x < 1, "at least 0 and below 1"),
    "clip_norm": (lambda x: 0 < x < float("inf"), "more than 0"),
    "warmup_steps": (lambda x: x >= 0, "at least 0"),
    "rows": (lambda x: x >= 1 and x % 2 == 1, "an odd number"),
    "columns_per_kept": (lambda x: x >= 1, "at least 1"),
}
"""Parameter → what makes a value of it valid, and the same in words."""


def resolve(method: str, given: Settings) -> dict[str, Any]:
    """Return all parameters of a method, the defaults filled in.

    Args:
        method: Name.
        given: Parameters; those that are None count as not given.

    Raises:
        ValueError: No such method, a parameter that it does not take, or a value that is not
            valid; one line.
    """
    if method not in METHODS:
        raise ValueError(str(unknown_name("compression method", method, METHODS)))
    defaults = METHODS[method].defaults
    asked = {name: value for name, value in given.items() if value is not None}
    for name, value in asked.items():
        if name not in defaults:
            takes = ", ".join(defaults) or "no parameter"
            raise ValueError(f"{method} has no {name}; it takes {takes}")
        is_valid, words = VALID.get(name, (lambda _: True, ""))
        if not is_valid(value):
            raise ValueError(f"{name} is {value}; give {words}")
    if method == "qsgd" and asked.get("bits") == 1:
        raise ValueError("bits is 1; qsgd needs 2 to 8, one of them for the sign")
    return {**defaults, **asked}


class Compressed(Execution):
    """DDP whose gradients are compressed on the way: a communication hook.

    Parameters that are None have the method's own defaults; see
    `scalebench.spec.strategies.data_parallel.METHODS`, and the method's file in
    ``worker/strategies/compression`` for its source, wire format and error.

    Attributes:
        method: Name of the method.
        bucket_mb: Size of a gradient bucket in MiB.
        error_feedback: Add to the next step what compression left out of this one.
        bits: How many bits an element has on the wire (``quantise``, ``qsgd``).
        chunk: Elements that share a scale; a multiple of 8.
        rounding: To the nearest value, or by chance and unbiased.
        ratio: Part of the elements that is sent.
        threshold: Smallest element that is sent.
        momentum: The momentum that ``dgc`` corrects for.
        clip_norm: To which ``dgc`` clips the gradient of a bucket.
        warmup_steps: Over which ``dgc`` comes down to its ratio.
        rank: The rank of the matrices that stand for a gradient (``powersgd``).
        start_step: From which ``powersgd`` compresses.
        rows: How many rows a sketch has.
        columns_per_kept: How many columns a sketch has for each element that is sent.
    """

    kind: Literal["compressed"] = "compressed"
    about = f"DDP with compressed gradients: {', '.join(METHODS)}"
    keeps_whole_model = True
    operations = ("all_reduce", "all_gather")
    method: str
    bucket_mb: float = Field(25.0, gt=0)
    error_feedback: bool | None = None
    bits: int | None = None
    chunk: int | None = None
    rounding: Literal["nearest", "stochastic"] | None = None
    ratio: float | None = None
    threshold: float | None = None
    momentum: float | None = None
    clip_norm: float | None = None
    warmup_steps: int | None = None
    rank: int | None = None
    start_step: int | None = None
    rows: int | None = None
    columns_per_kept: int | None = None

    @property
    def communicates(self) -> bool:
        """Not without a method that sends anything."""
        return self.method != "noop"

    @property
    def settings(self) -> dict[str, Any]:
        """The method's parameters, the defaults filled in."""
        own = {*Compressed.model_fields} - {*Execution.model_fields}
        given = self.model_dump(include=own - {"kind", "method", "bucket_mb"})
        return resolve(self.method, given)

    @model_validator(mode="after")
    def _method_and_parameters_are_valid(self) -> Self:
        _ = self.settings
        return self


class Ddp(Execution):
    """``torch.nn.parallel.DistributedDataParallel``: replicas, gradients all-reduced in buckets.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB.

    Attributes:
        bucket_mb: Size of a gradient bucket in MiB (``bucket_cap_mb``).
        accumulate: Microbatches per step; all but the last run under ``no_sync``.
        static_graph: Tell DDP that the graph does not change between steps.
        gradient_as_bucket_view: Gradients live inside the buckets (saves one copy of them).
        balance: ``"measured"``: a rank's share of the global batch follows its measured speed, in
            whole samples, between one and twice the equal share; gradients are weighted by samples.
        balance_every: Steps after which shares are set again.
    """

    kind: Literal["ddp"] = "ddp"
    about = "DistributedDataParallel: replicas, gradients all-reduced in buckets"
    keeps_whole_model = True
    works_alone = True
    scales_loss = True
    can_be_saved = True
    takes_any_size = True
    operations = ("all_reduce",)
    bucket_mb: float = Field(25.0, gt=0)
    accumulate: int = Field(1, ge=1)
    static_graph: bool = False
    gradient_as_bucket_view: bool = True
    balance: Literal["measured"] | None = None
    balance_every: int = Field(10, ge=1)

    @model_validator(mode="after")
    def _has_a_graph_that_torch_can_record(self) -> Self:
        if self.static_graph and self.accumulate > 1:
            raise ValueError(
                f"static_graph=True with accumulate={self.accumulate}: torch records the graph in"
                " the first backward pass, which then has to exchange gradients; leave one out"
            )
        return self

    def num_parts(self, world_size: int) -> int:
        """Return the microbatches of all ranks together."""
        return world_size * self.accumulate


class Fsdp(Execution):
    """FSDP2, ``torch.distributed.fsdp.fully_shard``: parameters, gradients and optimizer divided.

    A group of parameters is gathered just before it is used and given up again after; its
    gradients are reduce-scattered. Sources: Rajbhandari et al. 2020 (ZeRO, stage 3); Zhao et al.
    2023, "PyTorch FSDP", VLDB.

    Attributes:
        reshard_after_forward: Give gathered parameters up after forward and gather them again in
            backward; False: keep them until backward (ZeRO stage 2, "shard grad op").
        shard_size: Ranks among which each parameter is divided, where there are so many; None:
            all. With fewer than all, groups of this many ranks are replicas of one another
            (hybrid sharding, HSDP); 1: nothing is divided, gradients are all-reduced.
        min_num_params: A group is the smallest module with at least this many parameters, those
            of groups inside not counted; None: each of the workload's blocks is a group. The rest
            of the module is a separate group, the root, which is gathered once a step.
        prefetch: Groups that are gathered ahead of the one that computes, in forward and
            backward; None: torch's own choice.
        param_dtype: Parameters as they are gathered and computed with; the optimizer's stay
            float32.
        reduce_dtype: Gradients as they are reduced.
        cpu_offload: Keep shards and the optimizer in the host's memory.
    """

    kind: Literal["fsdp"] = "fsdp"
    about = "FSDP2, fully_shard: parameters, gradients and optimizer state divided"
    works_alone = True
    scales_loss = True
    can_be_saved = True
    takes_any_size = True
    operations = ("all_gather", "reduce_scatter", "all_reduce")
    always_communicates = GATHERS
    reshard_after_forward: bool = True
    shard_size: int | None = Field(None, ge=1)
    min_num_params: int | None = Field(None, ge=1)
    prefetch: int | None = Field(None, ge=1)
    param_dtype: FloatDtype = "float32"
    reduce_dtype: FloatDtype = "float32"
    cpu_offload: bool = False

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether matrix products run in bfloat16."""
        return self.autocast is True or self.param_dtype == "bfloat16"

    @property
    def rounds_parameters(self) -> bool:
        """Whether forward and backward see parameters, or gradients, rounded to bfloat16."""
        return "bfloat16" in (self.param_dtype, self.reduce_dtype)

    def shards(self, world_size: int) -> int:
        """Return the number of ranks among which each parameter is divided at a size."""
        return world_size if self.shard_size is None else min(self.shard_size, world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        reason = why_not_groups(world_size, self.shards(world_size), "shard_size")
        if reason is None and self.cpu_offload and device == "cpu":
            return "cpu_offload moves shards from a GPU to the host, and these ranks are on CPU"
        return reason


class Fsdp1(Execution):
    """The first FSDP, ``FullyShardedDataParallel``: a group's parameters in one flat tensor.

    For comparison: torch develops FSDP2 in its place. Source: Zhao et al. 2023.

    Attributes:
        reshard_after_forward: True: ``ShardingStrategy.FULL_SHARD``; False: ``SHARD_GRAD_OP``.
    """

    kind: Literal["fsdp1"] = "fsdp1"
    about = "FullyShardedDataParallel: the first FSDP, for comparison"
    works_alone = True
    scales_loss = True
    operations = ("all_gather", "reduce_scatter", "all_reduce")
    always_communicates = GATHERS
    reshard_after_forward: bool = True

    def why_not_whole_layers(self, optimizer: str) -> str | None:
        """Say why an optimizer that needs whole layers cannot train with this."""
        return (
            f"FSDP1 divides its flat tensors anywhere in a layer, and {optimizer} needs the norms "
            "of whole layers; choose Fsdp, which knows them"
        )


class Zero1(Execution):
    """DDP, with the optimizer's state and work divided (``ZeroRedundancyOptimizer``).

    Each rank updates whole parameters that it owns, and broadcasts them. Source: Rajbhandari et
    al. 2020 (ZeRO, stage 1).
    """

    kind: Literal["zero1"] = "zero1"
    about = "DDP with ZeroRedundancyOptimizer: optimizer state divided"
    works_alone = True
    scales_loss = True
    can_be_saved = True
    takes_any_size = True
    operations = ("all_reduce", "broadcast")
    always_communicates = "the optimizer broadcasts parameters in every step"
