"""Formats of logs as data: what a line of a step looks like, in templates.

A template is the text of the line, with ``{...}`` where something stands that changes. Spaces fit
any white space. What may stand in the braces:

``{step}``, ``{epoch}``  numbers that count; ``{last}``, ``{per_epoch}``: up to how many
``{s}``, ``{ms}``, ``{us}``  a time; a unit that is printed behind it counts more
``{elapsed}``  hours, minutes and seconds
``{samples}``, ``{tokens}``, ``{steps}``, ``{}``  a number, K, M, G and commas understood
``{s/step}``  a speed, of which the seconds of a step are printed; ``{s/kimg}`` of 1,000 samples
``{samples/gpu}``, ``{tokens/job}``  the same of one GPU, or of the job, whichever rank prints it
``{GiB}``, ``{GB}``, ``{MiB}``, ``{bytes}``  memory; ``{%}``, ``{ratio}``: a share
``{*}``  anything

A ``?`` before it: of a step or of all since the line before, it is not said which. With another
word before it, as in ``data time``, it is something else; so it is behind a ``!``.
"""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, cached_property, lru_cache
from importlib import resources
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from scalebench.errors import UsageError

Kind = Literal["step", "interval", "span", "micro", "cumulative", "window"]
Scope = Literal["job", "gpu", "rank"]

COUNTS = ("step", "last", "epoch", "per_epoch", "n")
NUMBER = r"(?:[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[Nn]a[Nn]|[-+]?[Ii]nf)"
_TIMES = {"s": 1.0, "sec": 1.0, "seconds": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_SIZES = {
    f"{prefix}{binary}B": float((2**10 if binary else 10**3) ** power)
    for power, prefix in enumerate(("", "K", "M", "G", "T"))
    for binary in ("", "i")
} | {"bytes": 1.0, "M": 2.0**20, "G": 2.0**30}
_OVER = {"s/step": (1.0, "steps"), "s/kimg": (1e3, "samples")}
_LONGER = r"\s?(?:(?:m|mins|minutes|h|hrs?|hours?)\b|min\s*\d)"
_LARGE = {"": 1.0, "K": 1e3, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}
BOUNDARY = r"(?<![\w/.-])(?<!per )"
BEGINS = r"(?:^|[]:|>)#\t]|\b[FP] |\dZ |:\d\d(?:[.,]\d+)? (?:UTC )?|- |/\d+ )\s*"
"""Of a line, or of what a program prints behind the name of its rank or host."""
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_SAID = r"(?:nan|NaN|inf|Inf|None|True|False)\s"
"""A word that is a value, and not the first one of a key."""
_AFTER = r"(?:\s?[A-Za-z%]{1,3})?\s*(?:$|[|,;()\]]|[A-Za-z][^\d|,;]*\d)"
"""What stands behind a number that has its name in front: no more, or the next name and number."""
_KEY = re.compile(
    rf"(?<![\w./=-])(?!{_SAID})"
    r"([A-Za-z][\w/-]*(?: [A-Za-z][\w/-]*){0,4}(?: ?\([A-Za-z/]+\))?)"
    rf"(?:\s*([:=])\s*(?>{NUMBER})|\s+(?>{NUMBER})(?:/\d+)?(?={_AFTER}))"
)
_OF_UNIT = re.compile(r"/|\bper\b")
_UNIT = re.compile(
    rf"(?<![\d.,])(?>{NUMBER})\s?(?:[KkMGB]\s)?([A-Za-z]++(?:(?:/| per )[A-Za-z]++)++)"
    r"(?!\w|/|\s*[:=]|\s+[\d.])"
)
_WORD = re.compile(rf"(?<![\w.=])(?!{_SAID})[A-Za-z]+\s$")
_HOLE = re.compile(r"\{([^{}]*)\}")


class Template:
    """A text with holes, compiled.

    Attributes:
        unsaid: Its time is of a step or of several.
        alone: With a word before it, it is something else.
        unit: What stands in its hole that is no count; empty: it has none.
        literal: Its longest part that is always the same.
        lead: Its first word; empty: it begins with a hole.
    """

    def __init__(self, text: str) -> None:
        self.unsaid, self.alone = text[0] == "?", text[0] in "?!"
        text = text[self.alone :]
        self.unit, self._over = "", 0.0
        anchored, ended = text.startswith("^"), text.endswith("$")
        pieces = _HOLE.split(text.removeprefix("^").removesuffix("$"))
        self.literal = max((word for piece in pieces[::2] for word in piece.split()), key=len)
        parts = [BEGINS if anchored else BOUNDARY if text[0].isalpha() else ""]
        for index, piece in enumerate(pieces):
            parts.append(self._hole(piece) if index % 2 else _spaced(piece))
        # A rate that stands before its unit: not that of "8 tok/s/gpu" or of "loss 8 tok/s 9".
        if self.unit and not pieces[0] and pieces[-1][-1:].isalpha():
            parts = [r"(?<![\d.,])", *parts, r"(?:ec)?(?![\w/]|\s*[:=]|\s+[\d.])"]
        self.pattern = re.compile("".join(parts) + (r"\s*(?:\n|$)" if ended else ""))
        known = {"%": 0.01, **_TIMES, **_SIZES}
        self._scale = known.get(self.unit, 1.0)
        first = pieces[0].split()
        self.lead = "" if anchored or not first or pieces[0][:1].isspace() else first[0]

    def _hole(self, name: str) -> str:
        if name == "*":
            return ".*?"
        if name in COUNTS:
            return (
                rf"\s*(?P<{name}>\d[\d,]{{0,14}}(?:(?:\.\d+)?k(?=it))?)(?:\.0+)?(?!\.?\d|e[-+\d])"
            )
        self.unit = name or "number"
        if name in _OVER:
            self._over, self.unit = _OVER[name]
        if name == "elapsed":
            clock = r"(?:\d+ days?, )?(?:\d+:)?\d+:\d\d(?:\.\d+)?"
            return rf"(?P<value>{clock}|(?:\d+[dhms] ?)+)(?P<suffix>)"
        if name in _TIMES:
            suffix = "(?:ms|us|µs|seconds|sec|s|min)(?![a-zA-Z/])" if name == "s" else "[KM](?!\\w)"
        elif name in _SIZES:
            suffix = "[KMGT]i?B|[MG](?![a-zA-Z])|bytes"
        else:
            suffix = "[KkMGBT](?![a-zA-Z])"
        clock = rf"(?![\d.,]*(?::\d|{_LONGER}))" if name in _TIMES else ""
        return rf"\s*(?P<value>{NUMBER}){clock}(?:\s?(?P<suffix>{suffix}))?"

    def search(self, line: str) -> re.Match[str] | None:
        """Return where it stands in a line; its first word is looked for first: that is quick."""
        if not self.lead:
            return self.pattern.search(line) if self.literal in line else None
        at = line.find(self.lead)
        while at >= 0:
            of_another = self.alone and _WORD.search(line, max(0, at - 24), at)
            if not of_another and (found := self.pattern.match(line, at)):
                return found
            at = line.find(self.lead, at + 1)
        return None

    def with_time(self, time: "Template") -> re.Pattern[str] | None:
        """Return what finds this and a time in lines of a whole text; None: nothing can.

        It begins with its first word: that is found quickly.
        """
        begins = self._begun(), time._begun()
        if self.unit or "" in (begins[0][0], begins[1][0]):
            return None
        (first, rest), (second, more) = begins
        return re.compile(f"{first}(?={rest})[^\\n]*?{second}{more}")

    def _begun(self) -> tuple[str, str]:
        """Return the pattern of one line in two parts: the first word, and what follows."""
        if not self.lead or not self.lead[0].isalpha():
            return "", ""
        word = re.escape(self.lead)
        rest = self.pattern.pattern.removeprefix(BOUNDARY).removeprefix(word)
        other = f"(?<![A-Za-z] {word})" if self.alone else ""
        return word, f"(?<![\\w/.-]{word}){other}" + rest.replace(r"\s", r"[^\S\n]")

    def find(self, line: str) -> float | None:
        """Return the value in a line, in SI units; None: the line has none."""
        found = self.search(line)
        return None if found is None else self.value(found["value"], found["suffix"])

    def value(self, text: str, suffix: str | None) -> float:
        """Return what a number means in this template's unit."""
        if self.unit == "elapsed":
            return elapsed(text)
        number = of_commas(text, self.unit in _TIMES)
        if self._over:
            return self._over / number if number > 0 else math.nan
        if not suffix:
            return number * self._scale
        if self.unit in _TIMES:
            times = _TIMES.get(suffix)
            return number * (times if times is not None else _LARGE[suffix] * self._scale)
        if self.unit in _SIZES:
            return number * _SIZES[suffix]
        return number * _LARGE[suffix] * self._scale


def of_commas(text: str, time: bool = False) -> float:
    """Return a number with commas between thousands, or one before its decimals.

    nan: it may be either; few print thousands of seconds without a point.

    Raises:
        ValueError: It is no number.
    """
    if "," not in text:
        return float(text)
    text = text.rstrip(",")
    if not _THOUSANDS.fullmatch(text):
        return float(text.replace(",", "." if "." not in text and text.count(",") == 1 else ""))
    return (
        math.nan
        if time and text.count(",") == 1 and "." not in text
        else float(text.replace(",", ""))
    )


def _spaced(text: str) -> str:
    return r"\s*".join(re.escape(word) for word in re.split(r"\s+", text))


def elapsed(text: str) -> float:
    """Return the seconds of ``1 day, 2:03:04``, ``03:04`` or ``1h 3m 4s``."""
    if ":" not in text:
        scale = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
        return sum(float(part[:-1]) * scale[part[-1]] for part in re.findall(r"[\d.]+[dhms]", text))
    days, _, clock = text.rpartition(", ")
    seconds = 86400.0 * float(days.split()[0]) if days else 0.0
    for power, part in enumerate(reversed(clock.split(":"))):
        seconds += float(part) * 60**power
    return seconds


@cache
def template(text: str) -> Template:
    """Return a template, compiled once.

    Raises:
        ValueError: It has nothing but holes.
    """
    if not _HOLE.sub("", text).strip("?^$ "):
        raise ValueError(f"{text!r} has nothing but what changes")
    return Template(text)


@lru_cache(maxsize=4096)
def small(key: str) -> str:
    """Return a key as `Value.keys` are written."""
    return " ".join(re.sub("[_-]", " ", key.lower()).replace("(", " (").split())


@lru_cache(maxsize=1)
def _keys_in(line: str) -> list[tuple[str, str]]:
    """Return the names and the units of numbers, and their templates without what is in the hole.

    What stands between two numbers is the second's name; a unit is it only where the first one has
    another name before it.
    """
    found, end = [], 0
    for key in _KEY.finditer(line):
        name, sign, before = key[1], key[2] or "", line[end : key.start()].rstrip()
        if sign or not before[-1:].isdigit() or not _OF_UNIT.search(name):
            found.append((small(name), f"!{name} {sign} {{}}"))
            end = key.end()
    return found + [(small(unit[1]), f"{{}} {unit[1]}") for unit in _UNIT.finditer(line)]


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
            for known, text in (_keys_in(line) if self.keys else ())
            if (unit := self.unit_of(known)) is not None
        )
        for one in itertools.chain(keyed, self.templates):
            if (number := one.find(line)) is not None:
                yield one, number


def _as_value(value: Any) -> Any:
    return {"at": value} if isinstance(value, str | list) else value


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
    )(_as_value)

    def seen(self, text: str) -> str:
        """Return a text as it is read: names and numbers may be quoted."""
        quoted = self.general and not self.bar
        return text.replace('"', "").replace("'", "") if quoted else text

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
