"""What traced steps tell of a row, read from its nested fields.

A ``summary.json`` may come from elsewhere: a field that is not what it should be counts as absent.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from scalebench.report.wording import is_baseline
from scalebench.summary import Estimate, Row

NEGLIGIBLE = 0.0005
"""Of the step: below this a part is written as 0.0 points."""

WORTH_TELLING = 0.01
"""Of the step: estimates or arrivals that differ by less make no difference to the answer."""

SELDOM = 10
"""Operations below which nobody can be said to come last always."""


@dataclass(frozen=True)
class Part:
    """A part of the loss budget, in words.

    Attributes:
        key: Its name in ``budget``, without the unit.
        header: Of a table's column.
        cause: What takes the time, as a sentence's subject.
        gain: The same where the part is negative: what gives time back.
        meaning: One line for a key.
    """

    key: str
    header: str
    cause: str
    gain: str
    meaning: str


PARTS = (
    Part(
        "compute_inflation",
        "compute inflation",
        "slower computation",
        "faster computation",
        "The rank's share of the work takes longer than the same share did on one rank.",
    ),
    Part(
        "exposed_transfer",
        "exposed transfer",
        "exposed transfer",
        "exposed transfer",
        "Data on the wire while the rank computes nothing.",
    ),
    Part(
        "wait",
        "wait",
        "waiting for other ranks",
        "waiting for other ranks",
        "Inside a communication that the last rank has not reached yet.",
    ),
    Part(
        "bubble",
        "bubble",
        "the pipeline's bubble",
        "the pipeline's bubble",
        "Idle by the pipeline's schedule.",
    ),
    Part(
        "codec",
        "codec",
        "encoding and decoding",
        "encoding and decoding",
        "Encoding and decoding compressed gradients.",
    ),
    Part(
        "data_stall",
        "data stall",
        "waiting for data",
        "less waiting for data",
        "Waiting for the next batch longer than one rank did.",
    ),
    Part(
        "other_idle",
        "other idle",
        "other idle time",
        "less other idle time",
        "Nothing of these: the interpreter, the strategy's bookkeeping, the operating system.",
    ),
    Part(
        "residual",
        "residual",
        "the residual",
        "the residual",
        "What the parts leave unexplained.",
    ),
)
"""In the order in which a budget is read, from the ideal step to the measured one."""

RESIDUAL = PARTS[-1]
WAIT = next(part for part in PARTS if part.key == "wait")


class Budget(BaseModel):
    """A row's loss budget: seconds per step; see `scalebench.budget.LossBudget`.

    Attributes:
        wait_s: None: could not be told from transfer, and `exposed_transfer_s` holds both.
        not_apart: Why not.
        drift: How much slower the steps beside the traced ones were than the clean window's.
        clock_bound_s: How far a wait may be wrong because two hosts' clocks differ; 0: one host.
    """

    ideal_s: FiniteFloat
    measured_s: FiniteFloat = Field(gt=0)
    closes: bool
    compute_inflation_s: FiniteFloat
    exposed_transfer_s: FiniteFloat
    wait_s: FiniteFloat | None
    bubble_s: FiniteFloat
    codec_s: FiniteFloat
    data_stall_s: FiniteFloat
    other_idle_s: FiniteFloat
    residual_s: FiniteFloat
    not_apart: str | None = None
    drift: FiniteFloat = 0.0
    clock_bound_s: FiniteFloat = 0.0
    estimates: dict[str, Estimate] = {}

    @property
    def ideal(self) -> float:
        """The ideal step as a part of the measured one: the efficiency."""
        return self.ideal_s / self.measured_s

    @property
    def gap(self) -> float:
        """What is missing to ideal, as a part of the measured step."""
        return 1 - self.ideal

    def knows(self, part: Part) -> bool:
        """Whether a part of the budget has a number of its own."""
        return getattr(self, f"{part.key}_s") is not None

    def share(self, part: Part) -> float:
        """Return a part as a part of the measured step; one that another part holds: 0."""
        seconds: float | None = getattr(self, f"{part.key}_s")
        return (seconds or 0.0) / self.measured_s

    def estimate(self, part: Part) -> Estimate | None:
        """Return a part with its interval, as a part of the measured step; the residual: None."""
        found = self.estimates.get(f"{part.key}_s")
        return found.scaled(1 / self.measured_s) if found else None

    def certain(self, part: Part) -> bool:
        """Whether the interval of a part excludes zero."""
        found = self.estimate(part)
        return found is not None and apart_from_zero(found)


class Operation(BaseModel):
    """Operations of one kind, or of one bucket; per step."""

    kind: str
    ordinal: int | None
    phase: str
    count: FiniteFloat
    num_bytes: FiniteFloat | None
    total_s: FiniteFloat
    exposed_s: FiniteFloat
    hidden_s: FiniteFloat


class Straggler(BaseModel):
    """How often one rank came last to an operation, and how long after the first."""

    rank: int
    count: int
    share: FiniteFloat
    median_late_s: FiniteFloat
    longest_run: int


class RankStep(BaseModel):
    """One rank's traced step and its parts, seconds: means over the launches."""

    rank: int
    step_s: FiniteFloat
    compute_s: FiniteFloat
    comm_s: FiniteFloat
    exposed_comm_s: FiniteFloat
    wait_s: FiniteFloat
    data_stall_s: FiniteFloat
    other_idle_s: FiniteFloat


class ExposedEstimates(BaseModel):
    """Exposed communication per step by trace, by difference and by DDP's logger."""

    trace: Estimate | None = None
    differential: Estimate | None = None
    ddp_logger: Estimate | None = None
    disagree: list[tuple[str, str]] | None = None


Model = TypeVar("Model", bound=BaseModel)


def apart_from_zero(estimate: Estimate) -> bool:
    """Whether an estimate has an interval and zero lies outside it."""
    if estimate.low is None or estimate.high is None:
        return False
    return estimate.low > 0 or estimate.high < 0


def budget_of(row: Row) -> Budget | None:
    """Return the loss budget of a row."""
    return _read(Budget, row.budget)


def budgeted(rows: Sequence[Row]) -> list[tuple[Row, Budget]]:
    """Return the rows whose loss is accounted for, without the baseline, which has none."""
    found = [(row, budget_of(row)) for row in rows if not is_baseline(row)]
    return [(row, budget) for row, budget in found if budget is not None]


def rank_steps(row: Row) -> list[RankStep]:
    """Return the traced step of every rank of a row."""
    told = (row.budget or {}).get("ranks")
    found = [_read(RankStep, fields) for fields in (told if isinstance(told, list) else ())]
    return [step for step in found if step is not None]


def operations(row: Row) -> list[Operation]:
    """Return the row's operations: of every kind, and of every bucket."""
    found = [_read(Operation, fields) for fields in row.communication or ()]
    return [operation for operation in found if operation is not None]


def arrivals(row: Row) -> list[Straggler]:
    """Return who came last how often, the most frequent first; of one rank alone: nothing."""
    if row.world_size == 1:
        return []
    found = [_read(Straggler, fields) for fields in row.stragglers or ()]
    return [straggler for straggler in found if straggler is not None]


def straggler(row: Row) -> Straggler | None:
    """Return the rank that holds the others up; None where nobody does so steadily.

    It comes last in more than 60 % of the operations and half as often again as chance would have
    it, by more than 1 % of a step. No test of significance: arrivals of one step depend on one
    another.
    """
    found = arrivals(row)
    if not found or row.step_s is None or sum(other.count for other in found) < SELDOM:
        return None
    num_operations = sum(other.count for other in found)
    enough = num_operations >= 2 * SELDOM or found[0].share >= 0.9
    often = enough and found[0].share > 0.6 and found[0].share >= 1.5 / row.world_size
    late = found[0].median_late_s > WORTH_TELLING * row.step_s.value
    return found[0] if often and late else None


def exposed_estimates(row: Row) -> ExposedEstimates | None:
    """Return the three estimates of the row's exposed communication."""
    return _read(ExposedEstimates, row.exposed_comm_estimates)


def disagreements(row: Row) -> list[tuple[str, Estimate, str, Estimate]]:
    """Return the pairs of estimates that disagree by more than 1 % of the step."""
    found = exposed_estimates(row)
    if found is None or row.step_s is None:
        return []
    least_s = WORTH_TELLING * row.step_s.value
    named = {"trace": found.trace, "differential": found.differential}
    named["ddp_logger"] = found.ddp_logger
    pairs = []
    for first, second in found.disagree or ():
        a, b = named.get(first), named.get(second)
        if a is not None and b is not None and abs(a.value - b.value) > least_s:
            pairs.append((first, a, second, b))
    return pairs


def _read(model: type[Model], value: Any) -> Model | None:
    try:
        return model.model_validate(value)
    except ValidationError:
        return None
