"""Formats of logs as data: what a line of a step looks like, in `templates`."""

import itertools
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from scalebench.errors import UsageError
from scalebench.importing.templates import Template, keys_in, template

Kind = Literal["step", "interval", "span", "micro", "cumulative", "window"]
Scope = Literal["job", "gpu", "rank"]

_OTHER_BAR = re.compile(
    r"\bepochs?:?\s+\d+%\||<[^,\]]*,\s*[\d.]+[kMG]?+(?:s/)?+"
    r"(?!(?:b|its?|iters?|iterations?|steps?|batch|batches|updates?)\b)[a-z]",
    re.IGNORECASE,
)
"""A progress bar that counts epochs, samples or the like."""
_OTHER_LINE = re.compile(
    r"\b(?:(?:evalu|valid)(?:at(?:e[ds]?|ing|ion))|checkpoint\w*|sav(?:ed|ing))\b", re.IGNORECASE
)
_OTHER_STEP = re.compile(r"\b(?:eval|val|valid)\b", re.IGNORECASE)
"""What a line says that is of no step, and what stands before its step's number there."""
_OTHER_WORK = re.compile(
    rf"{_OTHER_LINE.pattern}|\b(?:eval|val|valid|cv)(?![a-z\d])", re.IGNORECASE
)
_EPOCH = re.compile(r"(?<!best )(?<!max )(?<!total )\bepoch\W{1,4}(\d{1,9})\b", re.IGNORECASE)


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", ignored_types=(cached_property,))


class Value(_Table):
    """Where a value stands and what it is the value of.

    Attributes:
        at: Templates, the first that fits counts.
        keys: Unit → pattern of what stands before ``:`` or ``=`` and a number; before a blank as
            well, where the number is the last or the next name follows; and of a unit behind a
            number. Letters may be large or small, and ``_`` or ``-`` stand for spaces. They count
            first.
        kind: ``step``: of the very step; ``interval``: mean of the steps since the line before;
            ``span``: all of them together; ``micro``: of a micro-batch; ``cumulative``: since the
            beginning; ``window``: median or mean of the last few steps, whichever: the clock
            counts more.
        scope: Whose it is.
        doubtful: It only stands where no other value or clock tells.
    """

    at: list[str] = []
    keys: dict[str, str] = {}
    kind: Kind = "step"
    scope: Scope = "job"
    doubtful: bool = False

    _list = field_validator("at", mode="before")(_listed)

    @cached_property
    def templates(self) -> list[Template]:
        """The templates, compiled."""
        return [template(text) for text in self.at]

    @cached_property
    def unit_of(self) -> Callable[[str], str | None]:
        """From a key in small letters to its unit; None: it is another's."""
        patterns = [(unit, re.compile(text)) for unit, text in self.keys.items()]

        @lru_cache(maxsize=4096)
        def unit_of(key: str) -> str | None:
            return next((unit for unit, one in patterns if one.fullmatch(key)), None)

        return unit_of

    def found_in(self, line: str) -> Iterator[tuple[Template, float]]:
        """Yield the templates that find a value in a line, and the value."""
        keyed = (
            template(text.replace("{}", f"{{{unit}}}"))
            for known, text in (keys_in(line) if self.keys else ())
            if (unit := self.unit_of(known)) is not None
        )
        for one in itertools.chain(keyed, self.templates):
            if (number := one.find(line)) is not None:
                yield one, number


class Format(_Table):
    """How a framework prints its steps.

    Attributes:
        about: Which framework.
        refuse: Why its lines tell no step; empty: they do.
        step: Templates with ``{step}``: what makes a line one of a step.
        step_in: In what ``{step}`` counts; ``lines``: it is not said, and each line is one more.
        has: Words of which a line has one: others are passed over quickly.
        without: Words that no line of a step has, where evaluation looks alike.
        block: The lines after it, up to the next step, belong to it.
        bar: A progress bar: others may run at the same time, and the longest one is the training.
        general: Other lines may look like it by chance: two are needed.
        each_rank: Every rank prints with its number in front.
        final: There are no steps, only a line at the end.
        evaluation: Its lines are no training.
        end: What the last micro-batch of a step has.
        facts: Name of a fact → the key that stands before it, where it means that here.
        clock: Where the clock stands, if not in front of the line.
        time, rate, speed: Seconds, samples or tokens per second, steps per second.
        batch: Samples of a step of the job.
        step_tokens: Tokens of a step.
        micro: Number of a micro-batch, where a line may be of one; they are counted over all steps.
        skipped: How many steps were none of the optimizer.
    """

    name: str
    about: str = ""
    refuse: str = ""
    step: list[str]
    step_in: Literal["steps", "samples", "lines"] = "steps"
    has: list[str] = []
    without: list[str] = []
    block: bool = False
    bar: bool = False
    general: bool = False
    each_rank: bool = False
    final: bool = False
    evaluation: bool = False
    end: list[str] = []
    facts: dict[str, str] = {}
    clock: Value | None = None
    time: Value | None = None
    rate: Value | None = None
    speed: Value | None = None
    batch: Value | None = None
    step_tokens: Value | None = None
    micro: Value | None = None
    skipped: Value | None = None
    loss: Value | None = None
    memory: Value | None = None
    mfu: Value | None = None
    tflops: Value | None = None

    _lists = field_validator("step", "has", "without", "end", mode="before")(_listed)
    _values = field_validator(
        *("clock", "time", "rate", "speed", "batch", "step_tokens", "skipped", "loss"),
        *("memory", "mfu", "tflops", "micro"),
        mode="before",
    )(lambda value: {"at": value} if isinstance(value, str | list) else value)

    def passes_over(self, line: str, step: int) -> bool:
        """Tell whether a line is of something else, though a ``step`` is named there."""
        other: object = None
        if self.bar and self.step_in == "steps":
            other = _OTHER_BAR.search(line)
        elif self.general and not self.bar:
            other = _OTHER_LINE.search(line) or _OTHER_STEP.search(line, 0, step)
        return other is not None or any(word in line for word in self.without)

    def other_work(self, between: str) -> dict[str, float]:
        """Return what is noted of a step where lines before it name an evaluation or the like."""
        return {"held": 1.0} if between and _OTHER_WORK.search(between) else {}

    def seen(self, text: str) -> str:
        """Return a text as it is read: names and numbers may be quoted."""
        quoted = self.general and not self.bar
        return text.replace('"', "").replace("'", "") if quoted else text

    def epoch_in(self, text: str) -> str | None:
        """Return the epoch that is named last; None: none is, or only templates tell."""
        told = _EPOCH.findall(text) if self.general and not self.bar else []
        return told[-1] if told else None

    @cached_property
    def anchors(self) -> list[Template]:
        """The templates of the step, compiled."""
        return [template(text) for text in self.step]

    @cached_property
    def words(self) -> list[str]:
        """What a line has to have at least one of."""
        return self.has or list({anchor.literal for anchor in self.anchors})

    def scope_of(self, units: Mapping[str, str]) -> str:
        """Return whose its rate is, as in `Value.scope`; the unit may say it."""
        scope = "job" if self.rate is None else self.rate.scope
        return units.get("rate", "").partition("/")[2] or scope

    @cached_property
    def values(self) -> dict[str, Value]:
        """Name → the values that a line may have."""
        found = {name: getattr(self, name) for name in VALUES}
        return {name: value for name, value in found.items() if value is not None}

    @cached_property
    def times(self) -> dict[str, Value]:
        """Those of them that tell how long steps take."""
        needed = (*TIMES, "micro")
        return {name: value for name, value in self.values.items() if name in needed}


TIMES = ("clock", "time", "speed", "rate")
VALUES = (
    *("clock", "time", "rate", "speed", "batch", "step_tokens", "skipped", "loss"),
    *("memory", "mfu", "tflops", "micro"),
)


def _of_tables(tables: Mapping[str, Any], where: str) -> list[Format]:
    found = []
    for name, table in tables.items():
        try:
            one = Format(**{**table, "name": name})
            for text in [*one.step, *(text for value in one.values.values() for text in value.at)]:
                template(text)
            if one.step_in != "lines" and not all("{step}" in text for text in one.step):
                raise ValueError("step has no {step}")
        except (ValidationError, ValueError, TypeError, IndexError, re.error) as error:
            stated = error.errors()[0] if isinstance(error, ValidationError) else None
            why = f"{'.'.join(map(str, stated['loc']))}: {stated['msg']}" if stated else error
            raise UsageError(f"{where}: format {name}: {why}. See docs/import.md.") from None
        found.append(one)
    return found


def read_data() -> dict[str, Any]:
    """Return the tables of `formats.toml`."""
    return tomllib.loads(
        (resources.files("scalebench.importing") / "formats.toml").read_text(encoding="utf-8")
    )


@cache
def built_in() -> tuple[Format, ...]:
    """Return the formats of the package, the more special ones first."""
    return tuple(_of_tables(read_data(), "formats.toml"))


def formats(own: Mapping[str, Any] | None = None, where: str = "") -> Sequence[Format]:
    """Return the user's own formats and those of the package.

    Raises:
        UsageError: One of them is no format.
    """
    return [*_of_tables(own or {}, where), *built_in()]
