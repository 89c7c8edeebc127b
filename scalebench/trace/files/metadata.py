"""What an event's arguments say about a collective: kind, size, dtype, group."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scalebench.trace.operations.names import dtype_of, kind_of
from scalebench.trace.timeline import Kind

Details = Mapping[str, Any]

_LARGEST = 2**48
"""No tensor has as many elements; bytes of many then still fit 64 bits."""
_MOST_DIMS = 64
"""torch allows no more."""


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
