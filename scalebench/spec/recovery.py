"""What a suite asks about recovery: how to save, how often to try, where checkpoints go."""

from typing import Any, Literal

from pydantic import Field, model_validator

from scalebench.spec.base import Spec

SaveMethod = Literal["full", "sharded", "async", "async-pinned"]
"""Rank 0 gathers everything and calls ``torch.save``; with ``torch.distributed.checkpoint`` each
rank writes its part; the same in the background, after a copy to host memory; and to page-locked
memory (CUDA only)."""

FaultKind = Literal["kill", "raise", "hang", "link"]
"""SIGKILL, as when the memory runs out; an exception in the training loop; SIGSTOP (needs 2 ranks);
the link of the rank's virtual host is down (needs 2 hosts)."""
Restarter = Literal["scalebench", "torchrun"]

PHASES = ("notice", "stop", "start", "rendezvous", "build", "load", "first_step", "catch_up")
"""What lies between a failure and the step that was lost, in order."""

BADPUT: dict[str, tuple[str, ...]] = {
    "infrastructure": ("notice", "stop"),
    "initialisation": ("start", "rendezvous", "build"),
    "restore": ("load",),
    "data": (),
    "lost_progress": ("first_step", "catch_up"),
}
"""The field's name for lost time → the phases of a failure that are part of it. ``data``, bringing
the data to its place, lies within ``load`` and is taken from it. The sixth name, ``save``, is what
checkpoints cost where nothing fails."""

HANG_TIMEOUT_S = 5.0
"""Time-out of collectives where a rank is to hang or to lose its link: the others notice then."""


class FaultPlan(Spec):
    """What the ranks of one attempt do, and how one of them fails.

    Attributes:
        rank: Which one fails.
        at_step: It fails after so many steps: the signal comes a random moment later. In later
            attempts they are counted from where the job has caught up with the failure before.
        attempt: 0: begin; later ones continue from the newest checkpoint.
        fails: Whether a rank fails; False: the ranks end where they have caught up.
        save_every: Steps between checkpoints.
        until: The ranks save and end after so many steps; None: they continue until the step that
            was lost is done.
        slow_start_s: Every rank sleeps so long before it joins the others, in attempts after the
            first; seconds.
        slow_load_s: Every rank sleeps so long before it loads, likewise.
    """

    kind: FaultKind
    rank: int = Field(0, ge=0)
    at_step: int = Field(ge=1)
    attempt: int = Field(0, ge=0)
    fails: bool = True
    save_every: int = Field(4, ge=1)
    until: int | None = Field(None, ge=1)
    slow_start_s: float = 0.0
    slow_load_s: float = 0.0


class Recovery(Spec):
    """What checkpoints cost, and whether a run continues from them.

    Attributes:
        methods: Ways to save, all of them tried in one launch by turns.
        saves: Timed saves of each method; one more comes first and does not count.
        steps: Steps before each save, and at least as many after it.
        directory: Where checkpoints go; None: into the run folder. They are removed when the run is
            complete.
        faults: Ways in which a rank fails; none: none does.
        fault_repeats: Failures of each kind.
        restarted_by: Who starts the ranks again.
        hang_under_torchrun: Whether torchrun's ranks are made to hang, too. Its agent gives a
            stopped rank 30 s before it kills it, so each such failure takes 40 s.
        elastic: Whether the job also goes on with fewer ranks after a failure, and with all again
            later.
        faulty_cases: Cases that fail; None: all.
    """

    methods: tuple[SaveMethod, ...] = Field(("full", "sharded", "async"), min_length=1)
    saves: int = Field(5, ge=2)
    steps: int = Field(4, ge=2)
    directory: str | None = None
    faults: tuple[FaultKind, ...] = ("kill", "raise", "hang", "link")
    fault_repeats: int = Field(3, ge=1)
    restarted_by: tuple[Restarter, ...] = ("scalebench", "torchrun")
    hang_under_torchrun: bool = False
    elastic: bool = True
    faulty_cases: tuple[str, ...] | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_what_old_runs_have(cls, given: Any) -> Any:
        """Leave out the times of Slurm's requeue, which are no longer measured."""
        if not isinstance(given, dict):
            return given
        return {name: value for name, value in given.items() if name != "requeue_at_once"}
