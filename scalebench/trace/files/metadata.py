"""What a trace says of a collective in its arguments, and which rank a trace is of."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from scalebench.trace.events import Kind, Timeline
from scalebench.trace.operations.communication_kernels import dtype_of, kind_of

Details = Mapping[str, Any]

_LARGEST = 2**48
"""No tensor has as many elements; bytes of many then still fit 64 bits."""
_MOST_DIMS = 64
"""torch allows no more."""
RankSource = Literal["trace", "device", "file name", "order"]

_LARGEST_JOB = 1024
"""Ranks beyond which the number in which names differ is taken for a process or a time."""

_LABEL = re.compile(
    r"(?<![a-z])(?<!local[-_.])rank[-_.= ]?(\d+)|_r(\d+)(?![a-z\d])|\[r(\d+)\]", re.IGNORECASE
)


@dataclass(frozen=True)
class Facts:
    """What is known of one operation; None (or ``unknown``): nothing tells."""

    kind: Kind = "unknown"
    num_bytes: int | None = None
    dtype: str | None = None
    group: str | None = None
    group_size: int | None = None
    sequence: int | None = None

    def or_else(self, other: "Facts") -> "Facts":
        """Return these facts with the gaps filled from another source."""
        kind = other.kind if self.kind == "unknown" else self.kind
        same_kind = other.kind in (kind, "unknown")
        filled = {
            name: getattr(other, name)
            for name in ("num_bytes", "dtype", "group", "group_size", "sequence")
            if getattr(self, name) is None and (same_kind or name != "num_bytes")
        }
        return replace(self, kind=kind, **filled)


def from_metadata(details: Details) -> Facts:
    """Return the facts that c10d's metadata holds (torch ≥ 2.2, on kernels and on the host).

    The size is the full one: of an all-gather the gathered, of a reduce-scatter the scattered.
    """
    name = details.get("Collective name")
    if name is None:
        return Facts()
    kind = kind_of(str(name))
    elements_in = _whole(details.get("In msg nelems"))
    elements_out = _whole(details.get("Out msg nelems"))
    elements = elements_out if kind == "all_gather" else elements_in
    if kind == "recv":
        elements = elements_in or elements_out
    dtype = dtype_of(details.get("dtype"))
    group = details.get("Process Group Name")
    num_bytes = elements * dtype[1] if elements is not None and dtype else None
    return Facts(
        kind=kind,
        num_bytes=0 if kind == "barrier" else num_bytes,
        dtype=dtype[0] if dtype else None,
        group=str(group) if group not in (None, "") else None,
        group_size=max(_whole(details.get("Group size")) or 0, 0) or None,
        sequence=_whole(details.get("Seq")),
    )


def from_annotation(name: str, details: Details, group_size: int | None) -> Facts:
    """Return the facts of torch's annotation around an operation, such as ``gloo:all_gather``.

    It carries the shapes of what the rank hands in. An all-gather's full size therefore needs
    the size of the group.
    """
    kind = kind_of(name.partition(":")[2])
    if kind == "barrier":
        return Facts(kind=kind, num_bytes=0)
    dtype, num_bytes = _size(details, None)
    if kind == "all_gather" and num_bytes is not None:
        num_bytes = num_bytes * group_size if group_size else None
    return Facts(kind=kind, num_bytes=num_bytes, dtype=dtype)


# Position of the full-size tensor among the arguments (output, input, …) of c10d's operators.
_FULL_ARGUMENT = {
    "c10d::_allgather_base_": 0,
    "c10d::_reduce_scatter_base_": 1,
    "c10d::alltoall_base_": 1,
}


def from_request(name: str, details: Details) -> Facts:
    """Return the facts of the host's operator that asked for it, such as ``c10d::allreduce_``."""
    kind = kind_of(name.partition("::")[2])
    argument = _FULL_ARGUMENT.get(name)
    if argument is None:
        return Facts(kind=kind, num_bytes=0 if kind == "barrier" else None)
    dtype, num_bytes = _size(details, argument)
    return Facts(kind=kind, num_bytes=num_bytes, dtype=dtype)


def _size(details: Details, argument: int | None) -> tuple[str | None, int | None]:
    """Return dtype and bytes of one argument, or of all of them together."""
    shapes = details.get("Input Dims")
    types = details.get("Input type")
    if not isinstance(shapes, Sequence) or not isinstance(types, Sequence):
        return None, None
    tensors = list(zip(shapes, types, strict=False))
    if argument is not None:
        tensors = tensors[argument : argument + 1]
    known = [(shape, dtype_of(name)) for shape, name in tensors]
    counts = [(_elements(shape), dtype[1]) for shape, dtype in known if dtype]
    sizes = [count * itemsize for count, itemsize in counts if count is not None]
    if not sizes or len(sizes) < len(tensors):
        return None, None
    dtypes = {dtype[0] for _, dtype in known if dtype}
    return (dtypes.pop() if len(dtypes) == 1 else None), sum(sizes)


def _elements(shape: object) -> int | None:
    """Return the elements of a tensor; None: its shape is no list of numbers."""
    if not isinstance(shape, Sequence) or isinstance(shape, str):
        return None
    extents = [_whole(extent) for extent in shape]
    known = [extent for extent in extents if extent is not None]
    if len(known) < len(extents) or len(known) > _MOST_DIMS:
        return None
    return _whole(math.prod(known))


def _whole(value: object) -> int | None:
    """Return a number that may be written as text; None: it is none, or too large for one."""
    try:
        number = int(str(value))
    except ValueError:
        return None
    return number if abs(number) < _LARGEST else None


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
