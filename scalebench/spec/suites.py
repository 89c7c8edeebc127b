"""Suites: a question, the cases that answer it, how long to look; and how people choose."""

import re
from typing import Any, Self

from pydantic import Field, model_validator

from scalebench.errors import UsageError
from scalebench.spec.base import (
    COLLECTIVES,
    AlgorithmName,
    CollectiveName,
    Device,
    DtypeName,
    Name,
    Scaling,
    Spec,
)
from scalebench.spec.recovery import Race, Recipe, Recovery
from scalebench.spec.script import ScriptTarget
from scalebench.spec.strategies import Strategy
from scalebench.spec.strategies.execution import Plain

_WORD = re.compile(r"(?!(?:and|or|not)$)[A-Za-z0-9._+-]+")
MAX_RANKS = 65536
_TOKEN = re.compile(r"\s*(\(|\)|[A-Za-z0-9._+-]+|\S)")


def parse_world_sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of ranks in ``1,2,4``, in rising order, each once.

    Raises:
        UsageError: It is no such list.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = [int(part) for part in parts if re.fullmatch(r"\d{1,9}", part, re.ASCII)]
    if not numbers or len(numbers) < len(parts) or not all(0 < n <= MAX_RANKS for n in numbers):
        raise UsageError(
            f"{text!r} is not a list of rank counts. Give whole numbers of at least 1, "
            "separated by commas, for example 1,2,4."
        )
    return tuple(sorted(set(numbers)))


def matches(expression: str, name: str) -> bool:
    """Tell whether a case's name is chosen by an expression.

    A word matches the names that contain it; ``and``, ``or``, ``not`` and parentheses combine.

    Raises:
        UsageError: The expression cannot be read.
    """
    return _Parser(expression, name).parse()


def words(expression: str) -> list[str]:
    """Return the words of an expression, without the operators."""
    return [token for token in _TOKEN.findall(expression) if _WORD.fullmatch(token)]


class _Parser:
    """Recursive descent over ``or`` < ``and`` < ``not`` < word or parentheses."""

    def __init__(self, expression: str, name: str) -> None:
        self.expression = expression
        self.name = name
        self.tokens = _TOKEN.findall(expression)

    def parse(self) -> bool:
        try:
            value = self.either()
        except RecursionError:
            raise self.unreadable("its depth: it is nested too deeply") from None
        if self.tokens:
            raise self.unreadable(repr(self.tokens[0]))
        return value

    def either(self) -> bool:
        value = self.both()
        while self.accept("or"):
            value = self.both() or value
        return value

    def both(self) -> bool:
        value = self.negated()
        while self.accept("and"):
            value = self.negated() and value
        return value

    def negated(self) -> bool:
        if self.accept("not"):
            return not self.negated()
        if self.accept("("):
            value = self.either()
            if not self.accept(")"):
                raise self.unreadable("its end: a parenthesis is open")
            return value
        if not self.tokens or not _WORD.fullmatch(self.tokens[0]):
            raise self.unreadable(repr(self.tokens[0]) if self.tokens else "its end")
        return self.tokens.pop(0) in self.name

    def accept(self, token: str) -> bool:
        if self.tokens and self.tokens[0] == token:
            del self.tokens[0]
            return True
        return False

    def unreadable(self, where: str) -> UsageError:
        return UsageError(
            f"-k {self.expression!r} cannot be read at {where}. Give words that case names "
            "contain, joined by 'and', 'or', 'not' and parentheses."
        )


class Loader(Spec):
    """Feed a built-in workload from host memory, as ``torch.utils.data.DataLoader`` does it.

    The fields have the DataLoader's names, meaning and defaults. The ranks train on the samples
    that they train on without a loader, in the same order.

    Attributes:
        num_workers: Processes of each rank that make batches; 0: the rank makes them itself,
            between its steps.
        pin_memory: Copy batches to page-locked memory first, from where a GPU fetches them while
            the rank goes on. CPU ranks have no use for it.
        prefetch_factor: Batches that each worker makes in advance; None: 2.
        persistent_workers: Keep the workers from one epoch to the next.
    """

    num_workers: int = Field(0, ge=0)
    pin_memory: bool = False
    prefetch_factor: int | None = Field(None, ge=1)
    persistent_workers: bool = False

    @property
    def num_prefetched(self) -> int:
        """Batches that its workers have made before the first step: those cost no waiting."""
        return self.num_workers * (self.prefetch_factor or 2)

    @model_validator(mode="after")
    def _what_workers_do_needs_workers(self) -> Self:
        if self.num_workers:
            return self
        for field, given in (
            ("prefetch_factor", self.prefetch_factor is not None),
            ("persistent_workers", self.persistent_workers),
        ):
            if given:
                raise ValueError(f"{field} is for worker processes: give num_workers of at least 1")
        return self


class Case(Spec):
    """One line of a suite: a strategy, and what differs from the suite's defaults.

    Attributes:
        name: As that of a suite; each case of a suite has its own.
        strategy: With its settings, for example ``Ddp(bucket_mb=1)``.
        workload: Another one than the suite's.
        batch_size: Another one than the suite's.
        loader: Feed the ranks through a DataLoader; None: from batches that live on the device.
        optional: Not run unless ``-k`` names it.
        recipe: Optimizer and learning rate; None: those of the workload.
    """

    name: Name
    strategy: Strategy
    workload: str | None = None
    batch_size: int | None = Field(None, gt=0)
    loader: Loader | None = None
    optional: bool = False
    recipe: Recipe | None = None


ENERGY_WINDOW_S = 2.0
"""The shortest window whose energy means something: NVML's counter moves every 20 to 100 ms."""


class StepPlan(Spec):
    """How many steps a launch takes, and when it may stop.

    Attributes:
        steps: Exactly this many clean steps; None: stop by the two limits below.
        window_s: Length of the clean window, seconds of measured steps.
        energy_s: Run clean blocks in close succession for at least this long, whatever the two
            limits above say: a GPU's energy counter needs 2 seconds. None: the plan asks
            for it on CUDA, unless ``steps`` or ``--quick`` make a launch short.
        turn_s: Length of a clean block where launches take turns, seconds of measured steps; the
            clean window is divided into turns.
        min_steps: Never stop before this many clean steps (unless ``steps`` says so).
        max_warmup_steps: Give up waiting for the steady state after this many steps and measure
            all the same; the row is then stamped ``unsteady``.
        max_warmup_s: The same limit in seconds of steps.
        long_step_s: Where several ranks take longer for a step, a launch is kept short: two steps
            of warm-up, and no rounds in which steps are traced. None: it never is.
        trace: Follow the clean window with rounds in which steps are traced.
        rounds_s: Seconds of steps in those rounds together, kept as far as whole rounds allow.
        max_rounds: No more of them, whatever ``rounds_s`` says: what is traced is kept.
    """

    steps: int | None = Field(None, gt=0)
    window_s: float = Field(1.0, gt=0)
    energy_s: float | None = Field(None, ge=0)
    turn_s: float = Field(0.25, gt=0)
    min_steps: int = Field(10, ge=2)
    max_warmup_steps: int = Field(200, ge=2)
    max_warmup_s: float = Field(30.0, gt=0)
    long_step_s: float | None = Field(None, gt=0)
    trace: bool = True
    rounds_s: float = Field(1.0, gt=0)
    max_rounds: int = Field(8, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _without_what_old_runs_have(cls, given: Any) -> Any:
        """Leave out the precision at which a launch was to end, which no run has ever had."""
        if not isinstance(given, dict) or given.get("precision") is not None:
            return given
        return {name: value for name, value in given.items() if name != "precision"}

    def is_long(self, step_s: float, world_size: int) -> bool:
        """Tell whether steps are so long that a launch is kept short."""
        return self.long_step_s is not None and world_size > 1 and step_s > self.long_step_s


class Collectives(Spec):
    """Collectives to be timed by themselves, every result verified; nothing is trained.

    Sizes go from 8 B up by factors of 2.

    Attributes:
        operations: Which collectives to time; default: all that the backend has.
        dtypes: Which types of elements to time them with.
        algorithms: All-reduces by scalebench itself, to be measured as well as the backend's.
        max_bytes: No size is above this; None: 4 MiB on CPU, 256 MiB on CUDA.
        repeats: Timings of each size, by turns.
    """

    operations: tuple[CollectiveName, ...] = COLLECTIVES
    dtypes: tuple[DtypeName, ...] = ("float32",)
    algorithms: tuple[AlgorithmName, ...] = ()
    max_bytes: int | None = Field(None, ge=64, le=2**34)
    repeats: int = Field(5, ge=3)

    def largest(self, device: Device) -> int:
        """Return the largest size in bytes on a device."""
        return self.max_bytes or (2**28 if device == "cuda" else 2**22)


class Suite(Spec):
    """A question about scaling, and the cases that answer it. ``suites/*.py`` export these.

    Attributes:
        name: Lower-case letters and digits, joined by ``.``, ``_`` or ``-``; at most 64 characters.
        question: What the suite answers, one sentence.
        cases: The cases to train. Either these or ``collectives`` are necessary.
        collectives: Collectives that are timed before anything is trained; their fits replace
            the short calibration from which steps are predicted.
        workload: Name as ``--workload`` takes it.
        batch_size: Global batch under strong scaling, the rank's batch under weak; None: the
            workload's own default.
        scaling: Strong scaling keeps the global batch at every N, weak scaling that of a rank.
        steps: How long the steps of a launch are measured.
        repeats: Launches of each case at each N.
        seed: What model and data are drawn from.
        cell_limit_s: Wall clock after which a launch is ended and its row is ``failed``.
        collective_timeout_s: Time-out of the process group; None: 120 s, on CUDA 600 s: there a
            rank may compile for minutes while the others wait.
        gate: What the gate asks of this suite's rows, metric → settings, as the tables of
            ``[tool.scalebench.gate]`` have them; those overrule these.
        script: The user's own script, which is trained instead of a workload; None: there is none.
        race: Every launch is a race towards a loss, and every repeat has other initial parameters
            and another order of the samples. The first plain case is what all are compared with.
            None: steps are measured, and where they lead is not.
        recovery: Save and restore every case, too; None: no checkpoint is written.
    """

    name: Name
    question: str
    cases: tuple[Case, ...] = ()
    collectives: Collectives | None = None
    workload: str = "gpt"
    batch_size: int | None = Field(None, gt=0)
    scaling: Scaling = "strong"
    steps: StepPlan = StepPlan()
    repeats: int = Field(3, ge=1)
    seed: int = Field(0, ge=0)
    cell_limit_s: float = Field(900.0, gt=0)
    collective_timeout_s: float | None = Field(None, gt=0)
    gate: dict[str, dict[str, bool | float]] = Field(default_factory=dict)
    script: ScriptTarget | None = None
    race: Race | None = None
    recovery: Recovery | None = None

    def timeout_s(self, device: Device) -> float:
        """Return the time-out of process groups on a device, in seconds."""
        return self.collective_timeout_s or (600.0 if device == "cuda" else 120.0)

    @property
    def baseline(self) -> Case | None:
        """The first plain case: what a race is compared with."""
        return next((case for case in self.cases if isinstance(case.strategy, Plain)), None)

    @model_validator(mode="after")
    def _races_against_something(self) -> Self:
        if self.race is not None and self.baseline is None:
            raise ValueError("a race is compared with plain training: give a case with Plain()")
        return self

    @model_validator(mode="after")
    def _asks_for_something(self) -> Self:
        if not self.cases and self.collectives is None:
            raise ValueError("give cases to train, or collectives to time")
        return self

    @model_validator(mode="after")
    def _cases_have_names_of_their_own(self) -> Self:
        names = [case.name for case in self.cases]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"two cases are named {', '.join(twice)}")
        return self
