"""Which rank a trace is of: by its own word, by its file's name, else by its place."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from scalebench.trace.timeline import Timeline

RankSource = Literal["trace", "device", "file name", "order"]

_LARGEST_JOB = 1024
"""Ranks beyond which the number in which names differ is taken for a process or a time."""

_LABEL = re.compile(
    r"(?<![a-z])(?<!local[-_.])rank[-_.= ]?(\d+)|_r(\d+)(?![a-z\d])|\[r(\d+)\]", re.IGNORECASE
)


@dataclass(frozen=True)
class RankTrace:
    """One rank of a job.

    Attributes:
        rank_from: Who says that it is of this rank; ``device``: the number of its device.
        timeline: As `ReadTrace` keeps it.
        part: Which rank or device of the file it is; empty: the file is of one alone.
    """

    file: str
    rank: int
    rank_from: RankSource
    timeline: Timeline
    part: str = ""


def name_ranks(
    timelines: Sequence[tuple[str, Timeline]], devices: Sequence[bool] = ()
) -> list[RankTrace]:
    """Say which trace is of which rank.

    ``timelines``: file and what its rank did; a file may have several. ``devices``: of each,
    whether its rank is the number of a device; empty: none is.
    """
    is_device = list(devices) or [False] * len(timelines)
    labels: Sequence[int | None] = [_labelled(Path(file).name) for file, _ in timelines]
    if None in labels:
        labels = _different([Path(file).name for file, _ in timelines], timelines)
    names_tell = None not in labels and len(set(labels)) == len(labels)
    numbers = [
        timeline.rank for (_, timeline), one in zip(timelines, is_device, strict=True) if one
    ]
    devices_tell = len(set(numbers)) == len(timelines)
    traces = []
    for place, ((file, timeline), number) in enumerate(zip(timelines, labels, strict=True)):
        if timeline.rank is not None and not is_device[place]:
            traces.append(RankTrace(file, timeline.rank, "trace", timeline))
        elif timeline.rank is not None and devices_tell:
            traces.append(RankTrace(file, timeline.rank, "device", timeline))
        elif names_tell and number is not None:
            traces.append(RankTrace(file, number, "file name", timeline))
        else:
            traces.append(RankTrace(file, place, "order", timeline))
    return traces


def in_order(name: str) -> list[tuple[int, str]]:
    """Order names as their numbers are: ``rank 2`` before ``rank 10``."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in _pieces(name)]


def _pieces(name: str) -> list[str]:
    """Divide a name into text and numbers, in turn."""
    return re.split(r"(\d+)", name)


def _labelled(name: str) -> int | None:
    """Return the rank that a file's name tells; None: it tells none."""
    found = _LABEL.search(name)
    return int(next(number for number in found.groups() if number)) if found else None


def _different(
    names: Sequence[str], timelines: Sequence[tuple[str, Timeline]]
) -> Sequence[int | None]:
    """Return the one number in which names differ that are alike otherwise."""
    columns = list(zip(*map(_pieces, names), strict=False))
    differ = [position for position, column in enumerate(columns) if len(set(column)) > 1]
    alike = len({len(_pieces(name)) for name in names}) == 1
    if not alike or len(differ) != 1 or differ[0] % 2 == 0:
        return [None] * len(names)
    numbers = [int(number) for number in columns[differ[0]]]
    most = max((t.world_size for _, t in timelines if t.world_size), default=_LARGEST_JOB)
    return numbers if max(numbers) < most else [None] * len(names)
