"""Divided models: pipelines, and several divisions at once on one mesh of ranks."""

from dataclasses import replace
from math import prod
from typing import Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.base import CollectiveName, Device
from scalebench.spec.strategies.execution import Execution, why_not_groups
from scalebench.spec.strategies.groups import Context, Expert, Tensor
from scalebench.spec.workload import Divisible

ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble", "zbv", "dualpipev"
]
TWO_BACKWARD_CALLS: tuple[ScheduleName, ...] = ("zero-bubble", "zbv", "dualpipev")
"""Schedules that make gradients of inputs first and those of weights later."""
Axis = Literal["pipeline", "data", "shard", "context", "tensor"]

AXES: tuple[Axis, ...] = ("pipeline", "data", "shard", "context", "tensor")
"""The dimensions, outermost first: who talks least is farthest apart.

Source: Narayanan et al. 2021 (Megatron-LM), §3.2 and §5.4; Dubey et al. 2024 (Llama 3), §3.3.2.
"""

WITH_SAMPLES: tuple[Axis, ...] = ("data", "shard")
"""Dimensions along which ranks have different samples."""


class Pipeline(Execution):
    """``torch.distributed.pipelining``: each rank holds a part of the model, a stage.

    A batch passes the ranks in microbatches, forwards and backwards. The ranks of a pipeline share
    a batch; with ``data_parallel`` d the N ranks form d pipelines of N/d ranks, each with its own
    part of the global batch.

    Attributes:
        schedule: The order of forward and backward passes; see ``costmodel/pipeline_schedule.py``.
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

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.checkpointing == "selective" and self.schedule in TWO_BACKWARD_CALLS:
            return (
                f"{self.schedule} makes gradients of inputs and of weights in separate calls, "
                "and torch allows one such call with selective checkpointing; give "
                "checkpointing=True, or another schedule"
            )
        return None

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
        return why_not_groups(world_size, min(self.size or world_size, world_size))


class Mesh(Tensor):
    """Several divisions at once, on one ``DeviceMesh``.

    The number of ranks is the product of the dimensions. Ranks along ``pipeline`` hold different
    layers. Ranks along ``data`` are replicas; ranks along ``shard`` divide parameters, gradients
    and optimizer by FSDP2; with both it is HSDP. Ranks along ``context`` have different tokens of
    the same samples. Ranks along ``tensor`` divide every layer. Pipeline × shard × tensor is the
    3D of Megatron-LM. Sources: Narayanan et al. 2021 (Megatron-LM); Liang et al. 2024
    (TorchTitan), §2.1.

    Attributes:
        pipeline: Ranks that hold the layers one after the other.
        data: Replicas; None: as many as make up all ranks, or 1 where ``shard`` does.
        shard: Ranks among which what a rank keeps is divided once more; None: as many as make up
            all ranks.
        context: Ranks among which the sequence is divided.
        tensor: Ranks among which a layer is divided.
        expert: How many neighbours along ``data`` divide the experts of a mixture; all else stays
            replicated. The number of ranks is the same with it.
        order: The dimensions from the outermost to the innermost: ranks along the last are
            neighbours on the machine.
        schedule: In which order the pipeline runs its passes.
        microbatches: Parts in which a batch passes the pipeline; 1 without a pipeline.
        chunks: Stages on each rank of the pipeline.
        method: How ranks along ``context`` get at the other tokens; see `Context`.
    """

    kind: Literal["mesh"] = "mesh"  # type: ignore[assignment]
    about = "several divisions at once: pipeline × data × shard × context × tensor"
    size: None = None
    pipeline: int = Field(1, ge=1)
    data: int | None = Field(None, ge=1)
    shard: int | None = Field(1, ge=1)
    context: int = Field(1, ge=1)
    tensor: int = Field(1, ge=1)
    expert: int = Field(1, ge=1)
    order: tuple[Axis, ...] = AXES
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b"] = "1f1b"
    microbatches: int = Field(1, ge=1)
    chunks: int = Field(1, ge=1)
    method: Literal["ulysses", "ring"] = "ulysses"

    @model_validator(mode="after")
    def _every_axis_has_a_place(self) -> Self:
        if sorted(self.order) != sorted(AXES):
            raise ValueError(
                f"order names {', '.join(self.order)}; name each of {', '.join(AXES)} once, the "
                "outermost first"
            )
        if self.chunks > 1 and self.schedule != "interleaved-1f1b":
            raise ValueError(f"{self.schedule} has 1 stage per rank: give chunks=1")
        return self

    @property
    def operations(self) -> tuple[CollectiveName, ...]:  # type: ignore[override]
        """Collectives that its dimensions ask for."""
        if self.expert > 1:
            return Expert.operations
        attention: CollectiveName = "send_recv_ring" if self.method == "ring" else "all_to_all"
        along = (
            *("all_reduce", "all_gather", "reduce_scatter"),
            *((attention,) if self.context > 1 else ()),
            *(("send_recv",) if self.pipeline > 1 else ()),
        )
        return tuple(along)

    @property
    def divides_layers(self) -> bool:
        """Whether layers are divided, if only over one rank: only then a tensor plan is needed."""
        return self.tensor > 1 or self.sequence or self.loss

    def axis_sizes(self, world_size: int) -> dict[Axis, int]:
        """Return dimension → ranks along it, in the order of `AXES`; one rank has 1 of each.

        Where the dimensions do not make up all ranks their product is another number: see
        ``why_not``.
        """
        if world_size == 1:
            return dict.fromkeys(AXES, 1)
        fixed = self._fixed()
        rest = world_size // prod(fixed.values())
        return {axis: fixed.get(axis, 1) for axis in AXES} | {
            axis: max(1, rest) for axis in self._free()
        }

    def _fixed(self) -> dict[Axis, int]:
        given: dict[Axis, int | None] = {axis: getattr(self, axis) for axis in AXES}
        return {axis: size for axis, size in given.items() if size is not None}

    def _free(self) -> tuple[Axis, ...]:
        """Return the dimension that makes up all ranks; empty: all are given."""
        if self.shard is None:
            return ("shard",)
        return ("data",) if self.data is None else ()

    def ranks_per_group(self, world_size: int) -> int:
        """Return the number of ranks among which a layer is divided."""
        return self.axis_sizes(world_size)["tensor"]

    def ranks_per_pipeline(self, world_size: int) -> int:
        """Return the number of ranks that hold the layers one after the other."""
        return self.axis_sizes(world_size)["pipeline"]

    def num_shards(self, world_size: int) -> int:
        """Return the number of groups of ranks that have different samples."""
        sizes = self.axis_sizes(world_size)
        return prod(sizes[axis] for axis in WITH_SAMPLES)

    def num_parts(self, world_size: int) -> int:
        """Return in how many parts a global batch is done, one after another or side by side."""
        parts = self.microbatches if self.ranks_per_pipeline(world_size) > 1 else 1
        return self.num_shards(world_size) * parts

    def coordinates(self, rank: int, world_size: int) -> dict[Axis, int]:
        """Return dimension → place of a rank along it."""
        sizes, found = self.axis_sizes(world_size), {}
        for axis in reversed(self.order):
            rank, found[axis] = divmod(rank, sizes[axis])
        return found

    def groups_along(self, world_size: int, *axes: Axis) -> tuple[tuple[int, ...], ...]:
        """Return the ranks of every group along some dimensions taken together."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(world_size):
            place = self.coordinates(rank, world_size)
            others = tuple(place[axis] for axis in AXES if axis not in axes)
            found.setdefault(others, []).append(rank)
        return tuple(map(tuple, found.values()))

    def shard_of(self, rank: int, world_size: int) -> int:
        """Return which part of the global batch a rank has."""
        sizes, place = self.axis_sizes(world_size), self.coordinates(rank, world_size)
        number = 0
        for axis in WITH_SAMPLES:
            number = number * sizes[axis] + place[axis]
        return number

    def as_pipeline(self) -> Pipeline:
        """Return the pipeline along its dimension, by itself."""
        return Pipeline(
            schedule=self.schedule,
            microbatches=self.microbatches,
            chunks=self.chunks,
            autocast=self.autocast,
            compile=self.compile,
        )

    def as_context(self) -> Context:
        """Return the groups along ``context``, by themselves."""
        return Context(method=self.method, autocast=self.autocast, compile=self.compile)

    def as_expert(self) -> Expert | None:
        """Return the groups that divide experts; None: they are not divided."""
        if self.expert == 1:
            return None
        return Expert(
            size=self.expert,
            autocast=self.autocast,
            compile=self.compile,
            checkpointing=self.checkpointing,
        )

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if world_size > 1 and prod(self.axis_sizes(world_size).values()) != world_size:
            given = {axis: size for axis, size in self._fixed().items() if size > 1}
            told = " and ".join(f"{axis}={size}" for axis, size in given.items()) or "sizes of 1"
            return f"{told} do not make {world_size} ranks; choose numbers whose product is that"
        reason = self._why_not_together(device)
        experts = self.as_expert()
        if reason is None and experts is not None:
            return experts.why_not(device, world_size)
        return reason or super().why_not(device, world_size)

    def why_not_divided(self, workload: Divisible, world_size: int) -> str | None:
        """Say why the dimensions of N ranks cannot divide a workload; None: they can."""
        experts = self.as_expert()
        if experts is not None:
            return experts.why_not_divided(workload, world_size)
        if not workload.known:
            return None
        sizes = self.axis_sizes(world_size)
        stages = self.chunks * sizes["pipeline"]
        if workload.layers is not None and stages > workload.layers:
            return (
                f"{workload.name} has {workload.layers} layers, with the embedding and the output, "
                f"for {stages} stages; choose a smaller pipeline or fewer chunks"
            )
        layers, attention = workload.tensor_plan, workload.context_plan
        if layers is not None and layers.sequence is not None:
            layers = replace(layers, sequence=layers.sequence // sizes["context"])
        if attention is not None:
            attention = attention.own_heads(sizes["tensor"])
        part = replace(workload, tensor_plan=layers, context_plan=attention)
        reason = super().why_not_divided(part, world_size) if self.divides_layers else None
        if reason is None and self.context > 1:
            return self.as_context().why_not_divided(part, sizes["context"])
        return reason

    def why_no_race(self, world_size: int) -> str | None:
        """Say why no rank can evaluate held-out samples by itself."""
        sizes = self.axis_sizes(world_size)
        experts = self.as_expert()
        if sizes["pipeline"] > 1:
            return "no rank of a pipeline has the whole model, which a race evaluates"
        if sizes["context"] > 1:
            return self.as_context().why_no_race(world_size)
        if experts is not None:
            return experts.why_no_race(world_size)
        if not self.divides_layers:
            return (
                "a mesh of replicas and shards does not race; choose Ddp or Fsdp, which do the same"
            )
        return super().why_no_race(world_size)

    def _why_not_together(self, device: Device) -> str | None:
        """Say which dimensions cannot be combined; None: all can."""
        if self.expert > 1:
            return self._why_not_with_experts()
        for name, number in (("microbatches", self.microbatches), ("chunks", self.chunks)):
            if number > 1 and self.pipeline == 1:
                return f"{name}={number} needs a pipeline; give pipeline=2 or more"
        if self.pipeline > 1 and self.checkpointing:
            return (
                "checkpointing inside the stages of a mesh was not tried; give checkpointing=False"
            )
        if self.context > 1:
            return self.as_context().why_not(device, self.context)
        return None

    def _why_not_with_experts(self) -> str | None:
        """Say what divided experts cannot be combined with; None: there are only replicas."""
        others = {"pipeline": self.pipeline, "context": self.context, "tensor": self.tensor}
        if self.shard != 1:
            return "expert divides what replicas keep, and shard leaves none; choose shard=1"
        for axis, size in others.items():
            if size > 1:
                return f"expert and {axis} cannot be combined yet; choose {axis}=1, or expert=1"
        if self.divides_layers:
            return "expert cannot be combined with sequence=True or loss=True"
        if self.order != AXES:
            return "with divided experts a mesh has one order; leave order out"
        if self.data is not None and self.data % self.expert:
            return f"data={self.data} cannot be divided into groups of {self.expert} (expert)"
        return None
