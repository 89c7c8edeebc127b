"""One configuration of the space as a record: for a table, for JSON, and as a suite to be run."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scalebench.costmodel.pipeline_schedule import why_no_pipeline
from scalebench.search.candidates import AXES, CHECKPOINTING, PRECISIONS, SCHEDULES, Candidates
from scalebench.search.prediction.step import StepParts
from scalebench.search.ranking import Found
from scalebench.search.space import Job, order_names, order_number
from scalebench.spec import (
    AXES as MESH_AXES,
)
from scalebench.spec import (
    Context,
    Ddp,
    Device,
    Execution,
    Expert,
    Fsdp,
    LayerWise,
    Mesh,
    Pipeline,
    Plain,
    Tensor,
    Zero1,
)
from scalebench.spec.base import Record

COUNTS = ("data", "shard", "expert", "context", "tensor", "pipeline")
"""Axes as they are told, from the outside in."""
CHECKPOINTING_OF: dict[str, bool | Literal["selective"]] = {
    "none": False,
    "selective": "selective",
    "full": True,
}

NO_LAYERS = (
    "a mixture of experts has no stages and no tensor groups: its workloads name no layers and no "
    "tensor_plan"
)


class Choice(Record):
    """One way to train the job, and what the model says of it.

    Attributes:
        zero: ZeRO stage of the shards.
        schedule: Of the pipeline; ``none``: there is none.
        chunks: Stages on each rank.
        microbatches: Parts of a rank's batch, one after another.
        context_method: ``ulysses`` or ``ring``.
        placement: Axes from the inside of a node out, those with one rank left out.
        step_s: Predicted, seconds.
        parts_s: The same by its parts; they sum to it.
        memory_bytes: Predicted peak of the fullest rank, without margin.
        mfu: FLOPs of the model, nothing recomputed, over the published peak; null: no peak known.
    """

    data: int
    shard: int = 1
    expert: int = 1
    context: int = 1
    tensor: int = 1
    pipeline: int = 1
    zero: int = 0
    schedule: Literal["none", "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble"] = (
        "none"
    )
    chunks: int = 1
    microbatches: int = 1
    checkpointing: Literal["none", "selective", "full"] = "none"
    precision: Literal["float32", "bfloat16"] = "float32"
    bucket_mb: float = 25.0
    context_method: Literal["ulysses", "ring"] = "ulysses"
    placement: tuple[str, ...] = ()
    step_s: float = 0.0
    parts_s: dict[str, float] = Field(default_factory=dict)
    memory_bytes: float = 0.0
    mfu: float | None = None

    @property
    def mesh(self) -> tuple[int, ...]:
        """The ranks of each axis, and the stage."""
        return (*(getattr(self, axis) for axis in COUNTS), self.zero)

    @property
    def mesh_words(self) -> str:
        """The axes with several ranks, in words."""
        told = [f"{axis} {getattr(self, axis)}" for axis in COUNTS if getattr(self, axis) > 1]
        if self.zero:
            told = [part + f" (ZeRO-{self.zero})" * part.startswith("shard") for part in told]
        return " × ".join(told) or "one rank"

    @property
    def how_words(self) -> str:
        """Everything else that was chosen, in words."""
        told = []
        if self.pipeline > 1:
            chunks = f" v={self.chunks}" if self.chunks > 1 else ""
            told.append(f"{self.schedule}{chunks}")
        if self.microbatches > 1:
            told.append(f"{self.microbatches} microbatches")
        if self.context > 1:
            told.append(self.context_method)
        if self.checkpointing != "none":
            told.append(f"{self.checkpointing} checkpointing")
        told.append(self.precision)
        if self.replicates_alone:
            told.append(f"buckets {self.bucket_mb:g} MiB")
        return ", ".join(told)

    @property
    def replicates_alone(self) -> bool:
        """Whether its gradients are all-reduced in buckets during the backward pass."""
        others = self.context * self.tensor * self.pipeline
        return others == 1 and self.zero <= 1 and self.data * self.shard * self.expert > 1

    @property
    def name(self) -> str:
        """A short name, such as cases of suites have."""
        letters = {"data": "d", "shard": "s", "expert": "e", "context": "c", "tensor": "t",
                   "pipeline": "p"}  # fmt: skip
        told = [f"{letters[axis]}{getattr(self, axis)}" for axis in COUNTS if
                getattr(self, axis) > 1]  # fmt: skip
        if self.zero:
            told.append(f"z{self.zero}")
        if self.pipeline > 1:
            told.append(self.schedule + (f"-v{self.chunks}" if self.chunks > 1 else ""))
        if self.context > 1:
            told.append(self.context_method)
        if self.microbatches > 1:
            told.append(f"m{self.microbatches}")
        if self.checkpointing != "none":
            told.append(self.checkpointing)
        if self.precision != "float32":
            told.append("bf16")
        if self.replicates_alone:
            told.append(f"b{self.bucket_mb:g}".replace(".", "-"))
        return "-".join(told) or "one"


def choices(job: Job, found: Found) -> list[Choice]:
    """Return found candidates as records."""
    names = [f.name for f in fields(StepParts)]
    made = []
    for i in range(len(found)):
        bare, step_s = choice_at(found.candidates, i), float(found.step_s[i])
        peak = job.speed.peak_flops.get(bare.precision)
        work = job.model.flops_per_sample * job.batch
        told = {
            "step_s": step_s,
            "parts_s": {name: float(getattr(found.parts, name)[i]) for name in names},
            "memory_bytes": float(found.memory_bytes[i]),
            "mfu": work / (job.world_size * peak * step_s) if peak else None,
        }
        made.append(bare.model_copy(update=told))
    return made


def choice_at(of: Candidates, i: int) -> Choice:
    """Return the i-th candidate as a record; nothing is predicted of it."""
    mesh = {axis: int(getattr(of, axis)[i]) for axis in AXES}
    return Choice(
        **mesh,
        zero=int(of.zero[i]),
        schedule=SCHEDULES[int(of.schedule[i])],
        chunks=int(of.chunks[i]),
        microbatches=int(of.microbatches[i]),
        checkpointing=CHECKPOINTING[int(of.checkpointing[i])],
        precision=PRECISIONS[int(of.precision[i])],
        bucket_mb=float(of.bucket_mb[i]),
        context_method="ring" if of.ring[i] else "ulysses",
        placement=tuple(a for a in order_names(int(of.order[i])) if mesh[a] > 1),
    )


def columns_of(made: Sequence[Choice], ranks_per_node: int = 1) -> Candidates:
    """Return choices as columns again, each in its own placement (by default the usual one)."""
    rows = []
    for one in made:
        several = [axis for axis in one.placement if axis in AXES]
        order = [*several, *(axis for axis in AXES if axis not in several)]
        near, room = dict.fromkeys(AXES, 1), ranks_per_node
        for axis in order:
            near[axis] = int(np.gcd(getattr(one, axis), room))
            room = room // near[axis] if near[axis] == getattr(one, axis) else 1
        rows.append(
            [
                *(getattr(one, axis) for axis in AXES),
                *(near[axis] for axis in AXES),
                order_number([AXES.index(axis) for axis in order if getattr(one, axis) > 1]),
                one.zero,
                SCHEDULES.index(one.schedule),
                one.chunks,
                one.microbatches,
                CHECKPOINTING.index(one.checkpointing),
                PRECISIONS.index(one.precision),
                one.context_method == "ring",
            ]
        )
    *whole, ring = np.array(rows, dtype=np.int64).T
    names = [f.name for f in fields(Candidates) if f.name not in ("bucket_mb", "ring")]
    columns: dict[str, Any] = dict(zip(names, whole, strict=True))
    columns |= {"bucket_mb": np.array([one.bucket_mb for one in made]), "ring": ring}
    return Candidates(**columns)


def strategy_of(
    choice: Choice, device: Device, world_size: int, batch: int, experts: int = 1
) -> Execution | str:
    """Return the strategy that trains a configuration, or why none can.

    Args:
        choice: The configuration.
        device: Of the ranks.
        world_size: N.
        batch: Global batch, samples.
        experts: Of a block of the model; 1: it is no mixture.
    """
    if experts > 1 and choice.pipeline * choice.tensor > 1:
        return NO_LAYERS
    common: dict[str, Any] = {
        "autocast": choice.precision == "bfloat16",
        "checkpointing": CHECKPOINTING_OF[choice.checkpointing],
    }
    made = _strategy(choice, common)
    if isinstance(made, str):
        return made
    reason = made.why_not(device, world_size)
    if reason is None and isinstance(made, Pipeline):
        reason = why_no_pipeline(made, batch // max(1, choice.data), world_size)
    if reason is None and isinstance(made, Mesh) and made.pipeline > 1:
        samples = batch // made.num_shards(world_size)
        reason = why_no_pipeline(made.as_pipeline(), samples, made.pipeline)
    return made if reason is None else reason


def _strategy(choice: Choice, common: dict[str, Any]) -> Execution | str:
    several = {axis for axis in ("expert", "context", "tensor", "pipeline", "shard")
               if getattr(choice, axis) > 1}  # fmt: skip
    if several == {"pipeline"}:
        return Pipeline(
            schedule=choice.schedule,
            microbatches=choice.microbatches,
            chunks=choice.chunks,
            data_parallel=choice.data,
            **common,
        )
    if not several:
        return Ddp(bucket_mb=choice.bucket_mb, accumulate=choice.microbatches, **common)
    if choice.microbatches > 1 and "pipeline" not in several:
        return "gradients of several microbatches are added up by DDP and pipelines only"
    if several == {"shard"}:
        return _sharded(choice, common)
    if several == {"expert"}:
        return Expert(size=choice.expert, **common)
    if several == {"context"}:
        return Context(size=choice.context, method=choice.context_method, **common)
    return _mesh(choice, common)


MESH_SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b")


def _mesh(choice: Choice, common: dict[str, Any]) -> Execution | str:
    """Return the mesh with the axes of a choice, or why there is none.

    A mesh with stages gathers its shards once a step (ZeRO-2); without, for each pass (ZeRO-3).
    """
    staged = choice.pipeline > 1
    if choice.shard > 1 and choice.zero != (2 if staged else 3):
        has = "ZeRO-2 of shards with stages" if staged else "ZeRO-3 of shards without stages"
        return f"a mesh has {has}, not ZeRO-{choice.zero}"
    given: dict[str, Any] = {}
    if staged:
        if choice.schedule not in MESH_SCHEDULES:
            return f"stages of a mesh have {', '.join(MESH_SCHEDULES)}, not {choice.schedule}"
        given = {name: getattr(choice, name) for name in ("schedule", "microbatches", "chunks")}
    if choice.tensor > 1:
        given |= {"sequence": True, "loss": True}
    if choice.context > 1:
        given["method"] = choice.context_method
    return Mesh(
        pipeline=choice.pipeline,
        data=choice.data * choice.expert,
        shard=choice.shard,
        context=choice.context,
        tensor=choice.tensor,
        expert=choice.expert,
        order=_order(choice),
        **given,
        **common,
    )


def _order(choice: Choice) -> tuple[Any, ...]:
    """Return a mesh's axes from the outermost to the innermost, those of one rank in their places.

    A placement names axes with several ranks the other way round.
    """
    several = {axis for axis in MESH_AXES if getattr(choice, axis) > 1}
    placed = [axis for axis in reversed(choice.placement) if axis in several]
    if set(placed) != several:  # experts are among the replicas, so a mesh may place one more
        return MESH_AXES
    places = iter(placed)
    return tuple(next(places) if axis in several else axis for axis in MESH_AXES)


def _sharded(choice: Choice, common: dict[str, Any]) -> Execution | str:
    if choice.zero == 1:
        if choice.data > 1:
            return "ZeRO-1 divides the optimizer among all ranks"
        return Zero1(**common)
    return Fsdp(
        shard_size=choice.shard if choice.data > 1 else None,
        reshard_after_forward=choice.zero == 3,
        **common,
    )


def choice_of(strategy: Execution, world_size: int) -> Choice | str:
    """Return a strategy as a configuration, or why the search knows none like it.

    Args:
        strategy: Of a row.
        world_size: N.
    """
    names = {False: "none", True: "full", "selective": "selective"}
    common: dict[str, Any] = {
        "checkpointing": names[strategy.checkpointing],
        "precision": "bfloat16" if strategy.computes_in_bfloat16 else "float32",
    }
    found = _axes(strategy, world_size)
    return found if isinstance(found, str) else Choice(**{**common, **found})


def _axes(strategy: Execution, n: int) -> dict[str, Any] | str:
    if isinstance(strategy, Plain):
        return {"data": 1}
    if isinstance(strategy, Ddp):
        return {"data": n, "bucket_mb": strategy.bucket_mb, "microbatches": strategy.accumulate}
    if isinstance(strategy, Zero1):
        return {"data": 1, "shard": n, "zero": 1} if n > 1 else {"data": 1}
    if isinstance(strategy, Fsdp) and not strategy.cpu_offload and not strategy.rounds_parameters:
        shards = strategy.shards(n)
        stage = 3 if strategy.reshard_after_forward else 2
        return {"data": n // shards, "shard": shards, "zero": stage if shards > 1 else 0}
    if isinstance(strategy, Pipeline) and not isinstance(strategy, LayerWise):
        return _staged(strategy, n)
    if isinstance(strategy, Mesh):
        return _meshed(strategy, n)
    if isinstance(strategy, Tensor | Context | Expert):
        size = strategy.ranks_per_group(n)
        method = {"context_method": strategy.method} if isinstance(strategy, Context) else {}
        return {"data": n // size, strategy.kind: size, **method}
    return f"{type(strategy).__name__} is not in the space of the search"


def _staged(strategy: Pipeline, n: int) -> dict[str, Any] | str:
    if strategy.schedule in ("zbv", "dualpipev") or strategy.split == "unbalanced":
        return f"{strategy.schedule} with {strategy.split} stages is not in the space"
    pipelines = strategy.pipelines(n)
    if n // pipelines == 1:
        return {"data": pipelines, "microbatches": strategy.microbatches}
    return {
        "data": pipelines,
        "pipeline": n // pipelines,
        "schedule": strategy.schedule,
        "chunks": strategy.chunks,
        "microbatches": strategy.microbatches,
    }


def _meshed(strategy: Mesh, n: int) -> dict[str, Any]:
    sizes = strategy.axis_sizes(n)
    staged, experts = sizes["pipeline"] > 1, strategy.expert if n > 1 else 1
    found: dict[str, Any] = {axis: size for axis, size in sizes.items() if axis != "data"}
    found |= {"data": sizes["data"] // experts, "expert": experts}
    found["placement"] = tuple(axis for axis in reversed(strategy.order) if sizes[axis] > 1)
    if sizes["shard"] > 1:
        found["zero"] = 2 if staged else 3
    if sizes["context"] > 1:
        found["context_method"] = strategy.method
    if staged:
        found |= {name: getattr(strategy, name) for name in ("schedule", "microbatches", "chunks")}
    return found
