"""What a rule of advice may look at, and what a rule is."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile

from scalebench.records.rows.budget import PARTS, Budget, Part
from scalebench.records.rows.prediction import ChangedStep
from scalebench.records.summary import Row
from scalebench.report.words.causes import certain, likely, losses, points

DDP = "DistributedDataParallel"
SYNCHRONISING = (DDP, "FSDPModule", "FullyShardedDataParallel")
"""Wrappers whose gradients are sent in every backward pass that is not told otherwise."""

LEAST_LOSS = 0.01
"""Of the step: a smaller part is not worth a change."""

LEAST_GAIN = 0.02
"""Of the step: a smaller predicted gain is not worth a change."""


@dataclass(frozen=True)
class AdviceInput:
    """What a rule may look at.

    Attributes:
        row: The case's headline.
        of_suite: All rows of the suite.
    """

    row: Row
    of_suite: Sequence[Row] = ()

    @cached_property
    def budget(self) -> Budget | None:
        """The loss budget; None: there is none, or it does not close."""
        found = self.row.budget
        return found if found is not None and found.closes else None

    def points_of(self, key: str) -> str:
        """Write what a part of the budget takes, in percent of the step."""
        part = next(part for part in PARTS if part.key == key)
        assert self.budget is not None
        return points(self.budget.share(part))

    @property
    def losses(self) -> list[Part]:
        """The parts that take time and certainly or probably do, the largest first.

        They end before the first that may as well be nothing: none is worth a change as long as a
        larger one is not known.
        """
        found = losses(self.row, LEAST_LOSS)
        return list(takewhile(lambda part: self.is_certain(part) or self.is_likely(part), found))

    def is_certain(self, part: Part) -> bool:
        """Whether a part can be told from zero."""
        return self.budget is not None and certain(self.row, self.budget, part)

    def is_likely(self, part: Part) -> bool:
        """Whether a part is probably no noise, although its interval includes zero."""
        return self.budget is not None and likely(self.budget, part)

    @property
    def model_error(self) -> float | None:
        """How far the cost model is off here or in the run's other rows, whichever is more."""
        error, told = self.row.prediction_error, self.row.prediction
        return None if error is None else max(abs(error), (told and told.typical_error) or 0.0)

    def best(self, change: str) -> ChangedStep | None:
        """Return the what-if of one kind that gains most; None: none gains more than the error."""
        error = self.model_error
        told = self.row.prediction.what_if if self.row.prediction else ()
        found = [step for step in told if step.changes(change) and step.efficiency is not None]
        if error is None or not found:
            return None
        most = max(found, key=lambda step: step.gain)
        return most if most.gain > max(error, LEAST_GAIN) else None


@dataclass(frozen=True)
class Advice:
    """What to do, and the number that says so.

    Attributes:
        action: What to do.
        because: Why; empty: the action says it.
        in_brief: The next step in at most 75 characters; empty: the action says it.
    """

    action: str
    because: str = ""
    in_brief: str = ""

    @property
    def whole(self) -> str:
        """The sentence of page, Markdown and ``show --verbose``."""
        return f"{self.action}: {self.because}." if self.because else f"{self.action}."

    @property
    def next_step(self) -> str:
        """The line of the terminal."""
        return self.in_brief or self.action


Says = Callable[[AdviceInput], Advice | None]


@dataclass(frozen=True)
class Rule:
    """One piece of advice.

    Attributes:
        name: What it is called in tests.
        about: The part of the loss budget that it is about; None: no single one.
        says: The advice; None: the rule does not apply.
    """

    name: str
    about: str | None
    says: Says
