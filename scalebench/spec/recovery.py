"""What a suite asks about recovery and about races, and the optimizer that a case trains with."""

import math
from typing import Any, Literal, Self

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
OptimizerName = Literal["adamw", "sgd", "nesterov", "lars", "lamb"]
ScalingRule = Literal["kept", "sqrt", "linear"]

OPTIMIZERS: dict[OptimizerName, str] = {
    "adamw": "AdamW (Loshchilov & Hutter 2019)",
    "sgd": "SGD with momentum",
    "nesterov": "SGD with Nesterov's momentum",
    "lars": "LARS (You et al. 2017)",
    "lamb": "LAMB (You et al. 2019)",
}


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


class Recipe(Spec):
    """With which optimizer and learning rate a case trains.

    The rate rises linearly from zero while the first ``warmup_samples`` are trained on, and stays
    constant then: no schedule's end favours one number of samples.

    Attributes:
        optimizer: Its name.
        learning_rate: After the warm-up.
        warmup_samples: Samples, not steps, so that it is as long for every batch.
        weight_decay: Decoupled for ``adamw`` and ``lamb``, added to the gradient for the others.
        momentum: The momentum of ``sgd``, ``nesterov`` and ``lars``; β₁ of ``adamw`` and ``lamb``.
    """

    optimizer: OptimizerName = "adamw"
    learning_rate: float = Field(1e-3, gt=0)
    warmup_samples: int = Field(0, ge=0)
    weight_decay: float = Field(0.01, ge=0)
    momentum: float = Field(0.9, ge=0, lt=1)

    @property
    def needs_whole_layers(self) -> bool:
        """Whether a step of the optimizer depends on the norms of whole layers."""
        return self.optimizer in ("lars", "lamb")

    def rate_after(self, num_samples: int) -> float:
        """Return the learning rate of the step that ends after so many samples."""
        if num_samples >= self.warmup_samples:
            return self.learning_rate
        return self.learning_rate * num_samples / self.warmup_samples

    def for_batch(self, factor: float, rule: ScalingRule) -> Self:
        """Return the recipe for a batch ``factor`` times as large.

        Args:
            factor: New batch over old batch.
            rule: ``linear``: the rate grows with the batch (Goyal et al. 2017); ``sqrt``: with its
                root (Krizhevsky 2014); ``kept``: not at all.
        """
        scale = {"kept": 1.0, "sqrt": math.sqrt(factor), "linear": factor}[rule]
        return self.model_copy(update={"learning_rate": self.learning_rate * scale})


class Race(Spec):
    """Every case trains on the same samples, and its loss on held-out samples is followed.

    All see the same number of samples, whether they reach the target or not: so losses at equal
    samples and at equal time are known of all, and nothing depends on when somebody stopped.

    Attributes:
        samples: How many every case trains on.
        evaluate_every: Samples between two evaluations; a multiple of every batch.
        target_loss: Mean loss on the held-out samples; None: that of the plain baseline after
            ``target_after`` samples, the mean over its seeds.
        target_after: Samples; None: half of ``samples``.
    """

    samples: int = Field(gt=0)
    evaluate_every: int = Field(gt=0)
    target_loss: float | None = Field(None, gt=0)
    target_after: int | None = Field(None, gt=0)

    @property
    def baseline_samples(self) -> int:
        """After how many of its samples the baseline sets the target: an evaluation."""
        wanted = self.target_after or self.samples // 2
        return max(1, round(wanted / self.evaluate_every)) * self.evaluate_every

    @model_validator(mode="after")
    def _is_evaluated_at_its_end(self) -> Self:
        if self.samples % self.evaluate_every:
            raise ValueError(
                f"samples ({self.samples}) must be a multiple of evaluate_every "
                f"({self.evaluate_every})"
            )
        if self.baseline_samples > self.samples - self.evaluate_every:
            raise ValueError(
                "the baseline must set the target before its last evaluation: a target counts "
                "where it holds at two evaluations in a row. Lower target_after or evaluate_every"
            )
        return self
