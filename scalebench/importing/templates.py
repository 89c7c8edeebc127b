"""What stands in a line of a log: its text without what is in front, its names, units and numbers.

The one normaliser: what stands in front of a line, and pieces of text as they come.

Carriage returns end lines, colours are taken out; ranks, hosts and clocks in front of a line are
kept as facts: they tell who printed it, and when.

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

import gzip
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

from scalebench.errors import UsageError

CHUNK = 1 << 20
SINCE_1970 = 1e8
"""A time of more seconds is a clock; one of a thousand times more is in ms, and so on."""
LONGEST_LINE = 1 << 22
"""A line of more bytes is no line of a log."""

_ANSI = re.compile(rb"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_CLOCK = re.compile(
    r"(?<!\d)(?:(?P<date>\d{4}[-/]\d\d[-/]\d\d)[ T_]|(?P<day>\d\d/\d\d) )?"
    r"(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?P<f>[.,]\d{1,9})?+(?!\d|:\d)"
)
_RANK = re.compile(
    r"\[(?:default|rank)(\d+)\]|^\s*\[\d+,(\d+)\]<|\[rank:? ?(\d+)\]|\bRank[ :](\d+)\b"
    r"|(?:^|(?<=[]:|)>FPZ] )|(?<=\t))\s*(\d+): |\|RANK=(\d+)",
    re.IGNORECASE,
)
_HOST = re.compile(r"^\s*\(?([A-Za-z][\w.-]*)(?:-\d+\s+\||: |, pid=\d+\))")
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
_OF_TIME = r"\s?(?:ms|us|µs|s|sec|seconds)\b(?!/)"
"""Units of time: a number in front of one is no count."""
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


class Prefix(NamedTuple):
    """What stands in front of a step.

    Attributes:
        who: Rank or host that printed it, or both; empty: it is not said.
        rank: Its number; None: no number is stated.
        clock: Seconds since 1970, or since midnight; None: there is none.
        resolution: Of the clock, seconds.
    """

    who: str
    rank: int | None
    clock: float | None
    resolution: float


def prefix_of(text: str) -> Prefix:
    """Read what stands in front of a step; of several clocks the last one counts."""
    clock, rest, resolution = None, text, 1.0
    found = list(_CLOCK.finditer(text)) if ":" in text else []
    if found:
        last = found[-1]
        date, month, hours, minutes, seconds, fraction = last.groups()
        clock = _day(date or month or "") + int(hours) * 3600 + int(minutes) * 60 + int(seconds)
        if fraction:
            clock += float("0." + fraction[1:])
            resolution = 10.0 ** -len(fraction[1:])
        rest = text[: found[0].start()] + "|" + text[last.end() :]
    who, rank = _who(rest[:120])
    return Prefix(who, rank, clock, resolution)


@lru_cache(maxsize=4096)
def _who(rest: str) -> tuple[str, int | None]:
    *_, rank = None, *_RANK.finditer(rest)  # the last one is the program's own
    host = _HOST.search(rest)
    number = next((int(group) for group in rank.groups() if group), None) if rank else None
    named = host[1] if host and not host[1].startswith(("Epoch", "INFO")) else ""
    return f"{named}{'' if number is None else f'/{number}'}", number


@lru_cache(maxsize=64)
def _day(date: str) -> float:
    if not date:
        return 0.0
    if len(date) == 5:  # month and day: any leap year will do
        date = f"2000/{date}"
    try:
        return datetime.strptime(date.replace("-", "/"), "%Y/%m/%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return 0.0


def clock_in_seconds(number: float) -> float:
    """Return a clock that counts from 1970 in s, ms, µs or ns in seconds."""
    while 1e3 * SINCE_1970 < number < math.inf:
        number /= 1e3
    return number


def opened(path: Path) -> BinaryIO:
    """Open a log, packed or not.

    Raises:
        UsageError: It cannot be read, is empty, or is no text.
    """
    try:
        file: BinaryIO = path.open("rb")
        head = file.read(4096)
        if head[:2] == b"\x1f\x8b":
            file.close()
            file = cast(BinaryIO, gzip.GzipFile(path))
            head = file.read(4096)
        file.seek(0)
    except (OSError, EOFError) as error:
        raise UsageError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from error
    if not head.strip():
        file.close()
        raise UsageError(f"{path} is empty.")
    if b"\0" in head and not head.startswith((b"\xff\xfe", b"\xfe\xff")):
        file.close()
        raise UsageError(f"{path} is binary, not a log of text.")
    return file


def chunks(file: BinaryIO) -> Iterator[str]:
    """Yield a log in pieces of whole lines, without colours; the last one may not end in one.

    Carriage returns have become ends of lines.
    """
    rest = b""
    wide = ""
    while True:
        piece = file.read(CHUNK)
        if not piece:
            break
        if not rest and not wide and piece[:2] in (b"\xff\xfe", b"\xfe\xff"):
            wide = "utf-16-le" if piece[:2] == b"\xff\xfe" else "utf-16-be"
            piece = piece[2:]
        if wide:
            piece = piece.decode(wide, "replace").encode()
        piece = rest + piece
        if b"\r" in piece:
            piece = piece.replace(b"\r", b"\n")
        end = piece.rfind(b"\n") + 1
        if not end and len(piece) < LONGEST_LINE:
            rest = piece
            continue
        end = end or len(piece)
        rest = piece[end:]
        yield text_of(piece[:end])
    if rest:
        yield text_of(rest)


def _printed(line: bytes) -> bytes:
    try:
        said = json.loads(line)
        return f"{said.get('time', '')} {said['log']}".encode()
    except (ValueError, KeyError, AttributeError):
        return line + b"\n"


def text_of(piece: bytes) -> str:
    """Return lines as text: carriage returns end them, and colours are taken out.

    Of a container's lines in JSON, what it printed, behind the clock if there is one.
    """
    if piece.lstrip()[:7] == b'{"log":':
        piece = b"".join(_printed(line) for line in piece.splitlines())
    piece = piece.replace(b"\r", b"\n")
    if b"\x1b" in piece:
        piece = _ANSI.sub(b"", piece)
    return piece.decode("utf-8", "replace")


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
            behind = rf"(?:\.0+)?(?!\.?\d|e[-+\d]|{_OF_TIME})"
            return rf"\s*(?P<{name}>\d[\d,]{{0,14}}(?:(?:\.\d+)?k(?=it))?){behind}"
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
def keys_in(line: str) -> list[tuple[str, str]]:
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
