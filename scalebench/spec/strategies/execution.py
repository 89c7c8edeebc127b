"""How a rank does its arithmetic; the bare model in one process, and the user's own script."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

from pydantic import model_validator

from scalebench.spec.base import CollectiveName, Device, Spec
from scalebench.spec.workload import Divisible

WHY_NO_FLOAT16 = (
    "float16 needs a scaled loss, which the steps of {} do not have; give bfloat16 or float32, "
    "or one of plain, ddp, fsdp, fsdp1 and zero1"
)


class Execution(Spec):
    """How a rank does its arithmetic; the same at every N, so that sizes compare.

    Attributes:
        autocast: Forward pass under bfloat16 autocast; parameters stay float32. ``"float16"``: in
            float16, with a scaled loss (``torch.amp.GradScaler``; Micikevicius et al. 2018): a step
            whose gradients overflow is skipped.
        compile: ``torch.compile`` the module.
        checkpointing: Recompute each of the workload's blocks in the backward pass instead of
            keeping its activations (Chen et al. 2016). ``"selective"``: keep the results of
            matrix products and attention, which are expensive to compute, and recompute the rest.
        about: One line for ``scalebench list``.
        operations: Collectives that its steps ask for; the run calibrates these to predict steps.
            Empty: its steps are not predicted.
        has_reference: Whether its results are compared with those of a single process.
        keeps_whole_model: Whether every rank holds all of the model, however many ranks there are.
        works_alone: Whether a rank's work is the same whatever the others answer: then one rank's
            share can be measured by itself.
        can_be_saved: Whether checkpoints of its state can be written and read.
        takes_any_size: Whether it goes on with any number of ranks.
        scales_loss: Whether its steps can scale the loss, which float16 needs.
        untraced_because: Why a few traced steps do not stand for all of them; None: they do.
        always_communicates: Why no step of it can do without the other ranks; None: there may be
            one that can.
        no_race: Why no rank can evaluate held-out samples by itself; None: each can.
    """

    about: ClassVar[str] = ""
    operations: ClassVar[tuple[CollectiveName, ...]] = ()
    has_reference: ClassVar[bool] = True
    keeps_whole_model: ClassVar[bool] = False
    works_alone: ClassVar[bool] = False
    can_be_saved: ClassVar[bool] = False
    takes_any_size: ClassVar[bool] = False
    scales_loss: ClassVar[bool] = False
    untraced_because: ClassVar[str | None] = None
    always_communicates: ClassVar[str | None] = None
    no_race: ClassVar[str | None] = None
    autocast: bool | Literal["float16"] = False
    compile: bool = False
    checkpointing: bool | Literal["selective"] = False

    @model_validator(mode="after")
    def _check_float16(self) -> Self:
        if self.autocast == "float16":
            if not self.scales_loss:
                raise ValueError(WHY_NO_FLOAT16.format(getattr(self, "kind", "this strategy")))
            if self.computes_in_bfloat16 or self.rounds_parameters:
                raise ValueError(
                    "autocast='float16' with parameters or gradients in bfloat16: give one format"
                )
        return self

    @property
    def computes_in_bfloat16(self) -> bool:
        """Whether matrix products run in bfloat16."""
        return self.autocast is True

    @property
    def half_precision(self) -> bool | Literal["float16"]:
        """Whether matrix products run in bfloat16, ``"float16"``: in that."""
        return self.autocast or self.computes_in_bfloat16

    @property
    def rounds_parameters(self) -> bool:
        """Whether forward and backward see parameters, or gradients, rounded to bfloat16."""
        return False

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

    def why_not_divided(self, workload: Divisible, world_size: int) -> str | None:
        """Say why N ranks cannot divide a workload; None: they can, or divide nothing of it."""
        return None

    def why_not_whole_layers(self, optimizer: str) -> str | None:
        """Say why an optimizer that needs whole layers cannot train with this; None: it can."""
        return None

    def why_no_race(self, world_size: int) -> str | None:
        """Say why no rank can evaluate held-out samples by itself; None: each can."""
        return self.no_race

    def dispensable(self, world_size: int) -> Sequence[int]:
        """Return the ranks without which the others go on if they end; none: all end with it."""
        return ()

    def num_shards(self, world_size: int) -> int:
        """Return among how many ranks, or groups of ranks, a global batch is divided."""
        return world_size

    def shard_of(self, rank: int, world_size: int) -> int:
        """Return which part of the global batch a rank has; the ranks of a group share one."""
        return rank * self.num_shards(world_size) // world_size

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
        return Plain(autocast=self.half_precision, compile=self.compile)


def why_not_groups(world_size: int, size: int, field: str = "size") -> str | None:
    """Say why ranks cannot be divided into groups of a size, which a field gives; None: they can.

    Args:
        world_size: Number of ranks.
        size: Of a group.
        field: Name of the field that has it.
    """
    if world_size % size == 0:
        return None
    return (
        f"{world_size} ranks cannot be divided into groups of {size} ({field}); "
        f"choose a multiple of {size}"
    )


class Plain(Execution):
    """The bare model in one process, no wrapper, no process group: what T_1 means."""

    kind: Literal["plain"] = "plain"
    about = "the bare model in one process: the baseline"
    keeps_whole_model = True
    scales_loss = True


class Script(Execution):
    """As the user's own script distributes its training; see `scalebench.spec.script`.

    There is no bare model in one process to compare with: the script at N=1 takes its place.
    """

    kind: Literal["script"] = "script"
    about = "your own training script, unmodified: scalebench run -- train.py"
    has_reference: ClassVar[bool] = False
    always_communicates = "when ranks communicate is decided by the script"
