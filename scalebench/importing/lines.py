"""The one normaliser: what stands in front of a line, and pieces of text as they come.

Carriage returns end lines, colours are taken out; ranks, hosts and clocks in front of a line are
kept as facts: they tell who printed it, and when.
"""

import gzip
import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
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
