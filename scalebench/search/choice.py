"""One configuration of the space as a record: what a table, JSON and a suite have of it."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Literal

import numpy as np
from pydantic import Field

from scalebench.records.base import Record
from scalebench.search.candidates import AXES, CHECKPOINTING, PRECISIONS, SCHEDULES, Candidates
from scalebench.search.job import Job
from scalebench.search.prediction.step import StepParts
from scalebench.search.ranking import Found
from scalebench.search.space import order_names, order_number

COUNTS = ("data", "shard", "expert", "context", "tensor", "pipeline")
"""Axes as they are told, from the outside in."""


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
