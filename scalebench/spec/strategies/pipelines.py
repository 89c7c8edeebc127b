"""Pipelines: every rank holds a part of the layers."""

from typing import Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.base import Device
from scalebench.spec.strategies.execution import Execution, why_not_groups

ScheduleName = Literal[
    "gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble", "zbv", "dualpipev"
]
TWO_BACKWARD_CALLS: tuple[ScheduleName, ...] = ("zero-bubble", "zbv", "dualpipev")
"""Schedules that make gradients of inputs first and those of weights later."""


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
