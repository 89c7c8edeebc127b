"""Strategies: how a model is trained over the ranks, as data."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import Field, model_validator

from scalebench.spec.base import Device, FloatDtype, Spec
from scalebench.spec.collectives import CollectiveName
from scalebench.spec.compression import METHODS, resolve
from scalebench.spec.workload import ContextPlan, TensorPlan

GATHERS = "parameters are gathered in every step, whether gradients are reduced or not"


class Execution(Spec):
    """How a rank does its arithmetic; the same at every N, so that sizes compare.

    Attributes:
        autocast: Forward pass under bfloat16 autocast; parameters stay float32.
        compile: ``torch.compile`` the module.
        checkpointing: Recompute each of the workload's blocks in the backward pass instead of
            keeping its activations (Chen et al. 2016). ``"selective"``: keep the results of
            matrix products and attention, which are expensive to compute, and recompute the rest.
        about: One line for ``scalebench list``.
        operations: Collectives that its steps ask for; the run calibrates these to predict steps.
            Empty: its steps are not predicted.
        has_reference: Whether its results are compared with those of a single process.
        untraced_because: Why a few traced steps do not stand for all of them; None: they do.
    """

    about: ClassVar[str] = ""
    operations: ClassVar[tuple[CollectiveName, ...]] = ()
    has_reference: ClassVar[bool] = True
    untraced_because: ClassVar[str | None] = None
    autocast: bool = False
    compile: bool = False
    checkpointing: bool | Literal["selective"] = False

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether matrix products run in bfloat16."""
        return self.autocast

    @property
    def rounds_parameters(self) -> bool:
        """Whether forward and backward see parameters, or gradients, rounded to bfloat16."""
        return False

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks; None: there may be one that can."""
        return None

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process; None: they can."""
        return None

    @property
    def steps_per_exchange(self) -> int:
        """After how many steps of a rank the ranks exchange anything."""
        return 1

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        return None

    def num_shards(self, world_size: int) -> int:
        """Return among how many ranks, or groups of ranks, a global batch is divided."""
        return world_size

    def num_parts(self, world_size: int) -> int:
        """Return in how many parts, one after another or side by side, a global batch is done."""
        return self.num_shards(world_size)

    @property
    def communicates(self) -> bool:
        """Whether ranks exchange anything in a step; a trace without it would be a broken one."""
        return True

    def baseline(self) -> "Plain":
        """Return the one-process run that this execution's efficiency is measured against.

        Precision and compilation are kept: they are not what distribution costs.
        Checkpointing is not: a good engineer leaves it off when the model fits.
        """
        return Plain(autocast=self.computes_in_bfloat16, compile=self.compile)


class Plain(Execution):
    """The bare model in one process, no wrapper, no process group: what T_1 means."""

    kind: Literal["plain"] = "plain"
    about = "the bare model in one process: the baseline"


class Ddp(Execution):
    """``torch.nn.parallel.DistributedDataParallel``: replicas, gradients all-reduced in buckets.

    Source: Li et al. 2020, "PyTorch Distributed", VLDB.

    Attributes:
        bucket_mb: Size of a gradient bucket in MiB (``bucket_cap_mb``).
        accumulate: Microbatches per step; all but the last run under ``no_sync``.
        static_graph: Tell DDP that the graph does not change between steps.
        gradient_as_bucket_view: Gradients live inside the buckets (saves one copy of them).
    """

    kind: Literal["ddp"] = "ddp"
    about = "DistributedDataParallel: replicas, gradients all-reduced in buckets"
    operations = ("all_reduce",)
    bucket_mb: float = Field(25.0, gt=0)
    accumulate: int = Field(1, ge=1)
    static_graph: bool = False
    gradient_as_bucket_view: bool = True

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
    operations = ("all_gather", "reduce_scatter", "all_reduce")
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
        return self.autocast or self.param_dtype == "bfloat16"

    @property
    def rounds_parameters(self) -> bool:
        """Whether forward and backward see parameters, or gradients, rounded to bfloat16."""
        return "bfloat16" in (self.param_dtype, self.reduce_dtype)

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return GATHERS

    def shards(self, world_size: int) -> int:
        """Return the number of ranks among which each parameter is divided at a size."""
        return world_size if self.shard_size is None else min(self.shard_size, world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        shards = self.shards(world_size)
        if world_size % shards:
            return (
                f"{world_size} ranks cannot be divided into groups of {shards} (shard_size); "
                f"choose a multiple of {shards}"
            )
        if self.cpu_offload and device == "cpu":
            return "cpu_offload moves shards from a GPU to the host, and these ranks are on CPU"
        return None


class Fsdp1(Execution):
    """The first FSDP, ``FullyShardedDataParallel``: a group's parameters in one flat tensor.

    For comparison: torch develops FSDP2 in its place. Source: Zhao et al. 2023.

    Attributes:
        reshard_after_forward: True: ``ShardingStrategy.FULL_SHARD``; False: ``SHARD_GRAD_OP``.
    """

    kind: Literal["fsdp1"] = "fsdp1"
    about = "FullyShardedDataParallel: the first FSDP, for comparison"
    operations = ("all_gather", "reduce_scatter", "all_reduce")
    reshard_after_forward: bool = True

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return GATHERS


class Zero1(Execution):
    """DDP, with the optimizer's state and work divided (``ZeroRedundancyOptimizer``).

    Each rank updates whole parameters that it owns, and broadcasts them. Source: Rajbhandari et
    al. 2020 (ZeRO, stage 1).
    """

    kind: Literal["zero1"] = "zero1"
    about = "DDP with ZeroRedundancyOptimizer: optimizer state divided"
    operations = ("all_reduce", "broadcast")

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "the optimizer broadcasts parameters in every step"


ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble", "zbv", "dualpipev"
]


class Pipeline(Execution):
    """``torch.distributed.pipelining``: each rank holds a part of the model, a stage.

    A batch passes the ranks in microbatches, forwards and backwards. The ranks of a pipeline share
    a batch; with ``data_parallel`` d the N ranks form d pipelines of N/d ranks, each with its own
    part of the global batch.

    Attributes:
        schedule: The order of forward and backward passes; see ``costmodel/pipelines/orders.py``.
        microbatches: Parts of a pipeline's batch.
        chunks: Stages on each rank; more than one only where the schedule has them.
        split: Which layers make a stage: ``balanced`` by counted FLOPs, ``measured`` by the time
            that each layer takes on rank 0 before training, ``even`` by the number of layers, or
            ``unbalanced`` on purpose: the first stage has as many as can be.
        data_parallel: Pipelines side by side.
    """

    kind: Literal["pipeline"] = "pipeline"
    about = "torch.distributed.pipelining: stages on ranks, microbatches passing through"
    operations = ("send_recv", "all_reduce")
    schedule: ScheduleName = "1f1b"
    microbatches: int = Field(8, ge=1)
    chunks: int = Field(1, ge=1)
    split: Literal["balanced", "measured", "even", "unbalanced"] = "balanced"
    data_parallel: int = Field(1, ge=1)

    @model_validator(mode="after")
    def _chunks_fit_the_schedule(self) -> Self:
        exactly = {"gpipe": 1, "1f1b": 1, "zbv": 2, "dualpipev": 2}.get(self.schedule)
        if exactly is not None and self.chunks != exactly:
            raise ValueError(f"{self.schedule} has {exactly} per rank: give chunks={exactly}")
        return self

    def pipelines(self, world_size: int) -> int:
        """Return the number of pipelines side by side."""
        return self.data_parallel

    def num_shards(self, world_size: int) -> int:
        """Return the number of pipelines."""
        return self.pipelines(world_size)

    def num_parts(self, world_size: int) -> int:
        """Return the microbatches of all pipelines together."""
        return self.pipelines(world_size) * self.microbatches


class LayerWise(Pipeline):
    """The naive model split: a batch passes the ranks whole, and one of them works at a time.

    A pipeline with a single microbatch: what the schedules of pipelines are compared with. The
    bubble is (p−1)/p of a step. Source: Huang et al. 2019 (GPipe), figure 2b.

    Attributes:
        size: Ranks that hold one copy of the model, where there are so many; None: all. With
            fewer than all there are several copies, each with its part of the global batch.
    """

    kind: Literal["layerwise"] = "layerwise"  # type: ignore[assignment]
    about = "the naive model split: one microbatch, one rank works at a time"
    schedule: Literal["gpipe"] = "gpipe"
    microbatches: Literal[1] = 1
    chunks: Literal[1] = 1
    data_parallel: Literal[1] = 1
    size: int | None = Field(None, ge=1)

    def pipelines(self, world_size: int) -> int:
        """Return the number of copies of the model."""
        return world_size // (world_size if self.size is None else min(self.size, world_size))

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.size is None or world_size % min(self.size, world_size) == 0:
            return None
        return (
            f"{world_size} ranks cannot be divided into groups of {self.size} (size); "
            f"choose a multiple of {self.size}"
        )


class Tensor(Execution):
    """``torch.distributed.tensor.parallel``: the matrices of every layer are divided.

    The ranks of a group share a batch. With fewer than all ranks in a group, the groups have
    separate parts of the global batch, and average their gradients. Sources: Shoeybi et al. 2019
    (Megatron-LM); Korthikanti et al. 2022 (the sequence).

    Attributes:
        size: Ranks among which a layer is divided, where there are so many; None: all.
        sequence: Divide the sequence where every token is worked on by itself (normalisation,
            residual stream): reduce-scatter and all-gather in place of all-reduce.
        loss: Keep the logits divided, and divide the loss (``loss_parallel``); False: gather them.
    """

    kind: Literal["tensor"] = "tensor"
    about = "tensor parallel: the matrices of every layer divided, one batch for all"
    operations = ("all_reduce", "all_gather", "reduce_scatter")
    size: int | None = Field(None, ge=1)
    sequence: bool = False
    loss: bool = False

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "every layer needs the results of the other ranks"

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks among which a layer is divided at a size."""
        return world_size if self.size is None else min(self.size, world_size)

    def num_shards(self, world_size: int) -> int:
        """Return the number of groups."""
        return world_size // self.ranks_per_group(world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        size = self.ranks_per_group(world_size)
        if world_size % size:
            return (
                f"{world_size} ranks cannot be divided into groups of {size} (size); "
                f"choose a multiple of {size}"
            )
        if self.compile and self.sequence:
            return (
                "compiled blocks with a divided sequence get wrong gradients of their norms in "
                "torch 2.13; give --no-compile"
            )
        return None

    def why_not_plan(self, plan: TensorPlan, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide a workload by its plan; None: it can."""
        if self.loss and not plan.divides_logits:
            return "loss=True needs logits divided by vocabulary, and the workload divides none"
        if self.sequence and plan.sequence is None:
            return "sequence=True needs a sequence to divide, and the workload has none"
        numbers = dict(plan.divisors)
        if self.sequence and plan.sequence is not None:
            numbers["tokens"] = plan.sequence
        for word, number in numbers.items():
            if number % ranks:
                return (
                    f"{number} ({word}) cannot be divided among {ranks} ranks; choose a size that "
                    f"divides {number}"
                )
        return None


class Mesh(Tensor):
    """Several divisions at once, on one ``DeviceMesh``: neighbours divide layers, the rest samples.

    Ranks next to each other are a tensor group. Ranks with the same place in their groups have
    different samples; they are replicas that average their gradients (``data``), or divide
    parameters, gradients and optimizer among them as well (``shard``, FSDP2). Sources: Narayanan
    et al. 2021 (Megatron-LM); Liang et al. 2024 (TorchTitan), §2.1.

    Attributes:
        data: Replicas; None: as many as make up all ranks, or 1 where ``shard`` does.
        shard: Ranks among which what a rank of a tensor group keeps is divided; None: as many as
            make up all ranks.
        tensor: Ranks among which a layer is divided.
    """

    kind: Literal["mesh"] = "mesh"  # type: ignore[assignment]
    about = "several divisions at once: replicas or FSDP2 shards of tensor groups"
    size: None = None
    data: int | None = Field(None, ge=1)
    shard: int | None = Field(1, ge=1)
    tensor: int = Field(1, ge=1)

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks among which a layer is divided."""
        return min(self.tensor, world_size)

    def ranks_per_shard_group(self, world_size: int) -> int:
        """Return among how many tensor groups parameters are divided; 1: they are not."""
        return 1 if self.shard == 1 else world_size // self.ranks_per_group(world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if world_size == 1:
            return super().why_not(device, world_size)
        sharding = self.shard != 1
        if sharding and self.data not in (None, 1):
            return "data and shard cannot be combined yet; choose data=1, or shard=1"
        name, outer = ("shard", self.shard) if sharding else ("data", self.data)
        product = self.tensor * (outer or 1)
        if (world_size % product) if outer is None else (world_size != product):
            told = f"{name}={outer} and tensor={self.tensor}" if outer else f"tensor={self.tensor}"
            return f"{told} do not make {world_size} ranks; choose numbers whose product is that"
        return super().why_not(device, world_size)


class Context(Execution):
    """The sequence is divided: each rank computes on its part of the tokens, with the whole model.

    Only attention needs the other ranks. The ranks of a group share a batch. With fewer than all
    ranks in a group, the groups have separate parts of the global batch. Gradients are averaged
    over all ranks after the backward pass. Sources: Jacobs et al. 2023 (DeepSpeed-Ulysses); Liu et
    al. 2023 (ring attention); Dubey et al. 2024 (Llama 3), §3.3.2.

    Attributes:
        size: Ranks among which a sequence is divided, where there are so many; None: all.
        method: ``ulysses``: before attention the ranks exchange heads for tokens (all-to-all), so
            that each has the whole sequence for some heads, and back after it. ``ring``: keys and
            values pass around the ranks, in zigzag order, so that causal attention is equal work
            for all.
    """

    kind: Literal["context"] = "context"
    about = "context parallel: the tokens of every sample divided, attention across the ranks"
    operations = ("all_reduce", "all_to_all", "send_recv_ring")
    size: int | None = Field(None, ge=1)
    method: Literal["ulysses", "ring"] = "ulysses"

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "attention needs the keys and values of the other ranks"

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks among which a sequence is divided at a size."""
        return world_size if self.size is None else min(self.size, world_size)

    def num_shards(self, world_size: int) -> int:
        """Return the number of groups."""
        return world_size // self.ranks_per_group(world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        size = self.ranks_per_group(world_size)
        if world_size % size:
            return (
                f"{world_size} ranks cannot be divided into groups of {size} (size); "
                f"choose a multiple of {size}"
            )
        if self.method == "ring" and device == "cuda" and not self.computes_in_bfloat16:
            return "flash attention on a GPU computes in 16 bits; choose Context(autocast=True)"
        return None

    def why_not_plan(self, plan: ContextPlan, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide a workload's sequence; None: it can."""
        numbers = {"heads": plan.heads, "tokens": plan.sequence}
        if self.method == "ring":
            numbers = {"tokens": plan.sequence}
        parts = 2 * ranks if self.method == "ring" else ranks
        for word, number in numbers.items():
            if number % parts:
                twice = ", two parts for each," if self.method == "ring" else ""
                return (
                    f"{number} ({word}) cannot be divided among {ranks} ranks{twice} with "
                    f"method={self.method!r}; choose a size whose parts divide {number}"
                )
        return None


class Expert(Execution):
    """Expert parallel: the experts of a mixture are divided over the ranks, the rest is replicated.

    Tokens travel to the ranks of their experts and back, by all-to-alls with uneven splits. Every
    rank has a batch of its own. All else is data parallel: gradients of what every rank holds are
    averaged over all ranks, those of an expert over the ranks that hold it. Sources: Lepikhin et
    al. 2020 (GShard); Fedus et al. 2021 (Switch Transformer).

    Attributes:
        size: Ranks among which the experts of a layer are divided, where there are so many; None:
            all. With fewer than all there are several copies of every expert.
        experts: In every layer; None: as the workload has it.
        top_k: Experts that work on a token; None: as the workload has it.
        capacity_factor: An expert takes at most this many times the even share of a sample's
            tokens; None: as the workload has it.
        dropless: No token is dropped, however many an expert has.
    """

    kind: Literal["expert"] = "expert"
    about = "expert parallel: the experts of a mixture divided, tokens sent to them"
    operations = ("all_to_all", "all_reduce")
    size: int | None = Field(None, ge=1)
    experts: int | None = None
    top_k: int | None = None
    capacity_factor: float | None = None
    dropless: bool = False

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "a token's experts are on other ranks"

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks among which the experts are divided at a size."""
        return world_size if self.size is None else min(self.size, world_size)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        size = self.ranks_per_group(world_size)
        if world_size % size:
            return (
                f"{world_size} ranks cannot be divided into groups of {size} (size); "
                f"choose a multiple of {size}"
            )
        return self.why_not_routing()

    def why_not_routing(self) -> str | None:
        """Say why no router can do what is asked for; None: one can."""
        if self.dropless and self.capacity_factor is not None:
            return "dropless=True has no capacity_factor; give one of the two"
        if self.capacity_factor is not None and self.capacity_factor <= 0:
            return (
                f"a capacity_factor of {self.capacity_factor:g} lets no token through; give a "
                "number above 0, or dropless=True"
            )
        return None

    def why_not_experts(self, experts: int, top_k: int, ranks: int) -> str | None:
        """Say why a group of ranks cannot divide the experts of a layer; None: it can."""
        if experts < 1 or top_k < 1:
            return (
                f"a token needs an expert: experts is {experts} and top_k {top_k}; give 1 or more"
            )
        if top_k > experts:
            return f"top_k is {top_k} and there are {experts} experts; choose at most {experts}"
        if experts % ranks:
            return (
                f"{experts} experts cannot be divided among {ranks} ranks; choose a size that "
                f"divides {experts}"
            )
        return None


Grouped = Tensor | Context | Expert
"""Strategies whose ranks divide samples, or the model: a rank is another thing than at N=1."""


class Compressed(Execution):
    """DDP whose gradients are compressed on the way: a communication hook.

    Parameters that are None have the method's own defaults; see
    `scalebench.spec.compression.METHODS`, and the method's file in
    ``worker/strategies/compression`` for its source, wire format and error.

    Attributes:
        method: Name of the method.
        bucket_mb: Size of a gradient bucket in MiB.
        error_feedback: Add to the next step what compression left out of this one.
        bits: Of an element on the wire (``quantise``, ``qsgd``).
        chunk: Elements that share a scale; a multiple of 8.
        rounding: To the nearest value, or by chance and unbiased.
        ratio: Part of the elements that is sent.
        threshold: Smallest element that is sent.
        momentum: Of ``dgc``.
        clip_norm: To which ``dgc`` clips the gradient of a bucket.
        warmup_steps: Over which ``dgc`` comes down to its ratio.
        rank: Of the matrices that stand for a gradient (``powersgd``).
        start_step: From which ``powersgd`` compresses.
        rows: Of a sketch.
        columns_per_kept: Of a sketch, for each element that is sent.
    """

    kind: Literal["compressed"] = "compressed"
    about = f"DDP with compressed gradients: {', '.join(METHODS)}"
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


class Script(Execution):
    """As the user's own script distributes its training; see `scalebench.spec.script`.

    There is no bare model in one process to compare with: the script at N=1 takes its place.
    """

    kind: Literal["script"] = "script"
    about = "your own training script, unmodified: scalebench run -- train.py"
    has_reference: ClassVar[bool] = False

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "when ranks communicate is decided by the script"


class WithoutLockstep(Execution):
    """Every rank trains a model of its own; once in several steps they exchange parameters.

    Attributes:
        period: Steps of a rank from one exchange to the next.
    """

    untraced_because = (
        "training without lockstep is not traced: a few steps do not show what ranks exchange now "
        "and then"
    )
    period: int = Field(8, ge=1)

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        return (
            "not synchronous: it does not compute what one process does; tests compare it with its "
            "known limit"
        )

    @property
    def steps_per_exchange(self) -> int:
        """After how many steps of a rank the ranks exchange anything."""
        return self.period


class LocalSgd(WithoutLockstep):
    """Local SGD: the mean of all models takes the place of each, once in ``period`` steps.

    Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Lin et al. 2020,
    "Don't Use Large Mini-Batches, Use Local SGD" (post-local SGD).

    Attributes:
        synchronous_steps: Steps at the start whose gradients are averaged, as DDP does it: more
            than none is post-local SGD.
    """

    kind: Literal["local-sgd"] = "local-sgd"
    about = "Local SGD and post-local SGD: models averaged once in several steps"
    synchronous_steps: int = Field(0, ge=0)


class DiLoCo(WithoutLockstep):
    """DiLoCo: what the ranks have learned in ``period`` steps is a gradient for an outer optimizer.

    The inner optimizer is the workload's; the outer one is SGD with Nesterov's momentum. Source:
    Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".

    Attributes:
        outer_rate: Learning rate of the outer optimizer.
        outer_momentum: Its momentum.
    """

    kind: Literal["diloco"] = "diloco"
    about = "DiLoCo: many local steps, then one step of an outer optimizer"
    period: int = Field(32, ge=1)
    outer_rate: float = Field(0.7, gt=0)
    outer_momentum: float = Field(0.9, ge=0, lt=1)


class Gossip(WithoutLockstep):
    """D-PSGD over a ring: before its step a rank mixes its model with those of its two neighbours.

    Source: Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?".
    """

    kind: Literal["gossip"] = "gossip"
    about = "Gossip over a ring (D-PSGD): models mixed with those of both neighbours"
    period: int = Field(1, ge=1)


class ElasticAveraging(WithoutLockstep):
    """Elastic averaging SGD: models tied to a centre by springs, and the centre to their mean.

    Source: Zhang, Choromanska & LeCun 2015, "Deep learning with Elastic Averaging SGD".

    Attributes:
        moving_rate: β of the paper: the part of its way to the mean that the centre goes in an
            exchange. Each model goes β/N of its way to the centre.
    """

    kind: Literal["elastic"] = "elastic"
    about = "Elastic averaging (EASGD): models tied to a moving centre"
    moving_rate: float = Field(0.9, gt=0, le=1)


class FedAvg(WithoutLockstep):
    """Federated averaging: clients with data of their own train in turn, and are averaged.

    In each round some clients are drawn, the same number on every rank. Each starts from the
    common model and trains ``period`` steps on its own samples. Source: McMahan et al. 2017,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data".

    Attributes:
        period: Steps of a client in a round.
        clients: Among how many the workload's samples are divided.
        clients_per_rank: That each rank trains in a round, one after the other.
        concentration: Of the Dirichlet distribution by which each class is divided among the
            clients (Yurochkin et al. 2019): the smaller, the more a client has of few classes.
            None: all clients have the same mixture.
    """

    kind: Literal["fedavg"] = "fedavg"
    about = "FedAvg: clients with separate data, some drawn for each round"
    clients: int = Field(16, ge=1)
    clients_per_rank: int = Field(1, ge=1)
    concentration: float | None = Field(None, gt=0)

    @property
    def steps_per_exchange(self) -> int:
        """Steps of a rank in a round: those of all its clients."""
        return self.period * self.clients_per_rank

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        drawn = self.clients_per_rank * world_size
        if drawn <= self.clients:
            return None
        return (
            f"{world_size} ranks draw {drawn} clients in a round, and there are {self.clients}; "
            f"choose clients of at least {drawn}"
        )


class ParameterServer(WithoutLockstep):
    """Workers push gradients to servers, which step and answer with the parameters.

    Sources: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server"; Ho
    et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".

    Attributes:
        servers: Ranks that serve an equal part of the parameters each, beside their own training.
        staleness_bound: Steps that a worker may be ahead of the slowest one. 0: the servers wait
            for all gradients and step by their mean, which is synchronous training. None: no
            bound, every gradient is a step as soon as it arrives, and the batches of a step go to
            whoever is free.
    """

    kind: Literal["parameter-server"] = "parameter-server"
    about = "Parameter server: synchronous, asynchronous, or with bounded staleness"
    period: Literal[1] = 1
    servers: int = Field(1, ge=1)
    staleness_bound: int | None = Field(None, ge=0)

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        if self.staleness_bound == 0:
            return "no rank has the averaged gradients; tests compare the parameters with DDP's"
        return super().unverified_because

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.servers <= world_size:
            return None
        return f"{self.servers} servers are more than the {world_size} ranks; choose fewer"


Strategy = Annotated[
    Plain
    | Ddp
    | Fsdp
    | Fsdp1
    | Zero1
    | Pipeline
    | LayerWise
    | Tensor
    | Mesh
    | Context
    | Expert
    | Compressed
    | LocalSgd
    | DiLoCo
    | Gossip
    | ElasticAveraging
    | FedAvg
    | ParameterServer
    | Script,
    Field(discriminator="kind"),
]


STRATEGIES: dict[str, type[Execution]] = {
    one.model_fields["kind"].default: one for one in get_args(get_args(Strategy)[0])
}
"""Kind → the strategy."""
