"""Reads a Kineto trace, of any job, torch version and vendor, into `Events`."""

import re
from array import array
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.trace.events import CATEGORIES, Category, Events
from scalebench.trace.files.json_stream import TraceFile
from scalebench.trace.operations.communication_kernels import PRODUCTS, carries_details

_ALIASES = {
    "operator": "cpu_op",
    "memcpy": "gpu_memcpy",
    "memset": "gpu_memset",
    "mtia_ccp_events": "kernel",
}
"""Names of Kineto's categories in traces of torch up to 1.11, and what MTIA's device runs."""

_NO_KERNEL: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile("dma"), "gpu_memcpy"),
    (re.compile("event_|job_exe|packet|pe_exe|cpum_exe_subgraph"), "other"),
)
"""How names begin of what MTIA's device does that is no kernel, as HolisticTraceAnalysis has it."""

_BLITS: tuple[tuple[re.Pattern[str], Category], ...] = (
    (re.compile("__amd_rocclr_copy"), "gpu_memcpy"),
    (re.compile("__amd_rocclr_fill"), "gpu_memset"),
)
"""The kernels with which ROCm's runtime carries out copies and fills (ROCm/clr: blitcl.cpp)."""

_ON_DEVICE = CATEGORIES.index("kernel")
"""The first category of the device; the host's come before."""


_NUM_COLUMNS = 7
_LARGEST = 2**62
"""Whatever is larger is no time stamp and no number of anything."""
_MOST_DIGITS = 19
_LONGEST_TRACE_NS = 86_400 * 10**9
_SLACK_NS = 10**9
_SLACK_ALONE_NS = 60 * 10**9
"""How far from the host's events the device's may be, at least; without any, from each other."""


def read_kineto(path: str | Path) -> Events:
    """Return the complete events of a trace file, ``.json`` or ``.json.gz``.

    ``B`` and ``E`` events of a thread are joined in pairs; an event without a duration takes no
    time; metadata, flows, counters and events without a time stamp are left out, and so are those
    whose time is no time in nanoseconds since 1970, whose duration is negative or no number, and
    what the device did at time 0 or far from everything else: these are counted. What the file
    says of the device again, to the last number, is left out as well.

    Raises:
        UsageError: The file is missing, empty, cut off, no JSON, or no trace.
    """
    file = TraceFile(Path(path))
    columns = _Columns()
    for event in file.events():
        if isinstance(event, dict):
            columns.add(event)
    if not columns.rows:
        raise UsageError(
            f"{path} contains no event with a duration. Record the trace with torch.profiler "
            "around whole training steps."
        )
    events = columns.events(file.about)
    if not len(events):
        raise UsageError(
            f"{path} contains no event with a valid time. Record it again with torch.profiler."
        )
    return events


class _Columns:
    """The columns of `Events` while they grow."""

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.detailed: list[bool] = []
        self.rows = array("q")
        self.details: dict[int, dict[str, Any]] = {}
        self.owners: dict[tuple[Any, Any, Any], int] = {}
        self.shapes: dict[int, Any] = {}
        self.types: dict[int, Any] = {}
        self.num_left_out = 0
        self._categories: dict[str, int] = {}
        self._threads: dict[str, int] = {}
        self._open: dict[tuple[str, str], list[dict[str, Any]]] = {}

    def add(self, event: dict[str, Any]) -> None:
        """Take up one event of the file."""
        phase = event.get("ph")
        if phase == "X" or (phase is None and "dur" in event):
            self._add_complete(event, event.get("dur", 0))
        elif phase in ("B", "E"):
            self._add_half(event, phase)

    def _add_half(self, event: dict[str, Any], phase: str) -> None:
        stack = self._open.setdefault((str(event.get("pid")), str(event.get("tid"))), [])
        if phase == "B":
            stack.append(event)
        elif stack:
            begin = stack.pop()
            start, end = nanoseconds(begin.get("ts")), nanoseconds(event.get("ts"))
            if start is not None and end is not None:
                self._add_complete(begin, Decimal(end - start) / 1000)

    def _add_complete(self, event: dict[str, Any], duration: object) -> None:
        start = nanoseconds(event.get("ts"))
        lasts = nanoseconds(duration)
        if (
            start is None
            or lasts is None
            or start < -_LARGEST // 2
            or not 0 <= lasts <= _LARGEST // 2
        ):
            self.num_left_out += event.get("ts") is not None
            return
        index = len(self.rows) // _NUM_COLUMNS
        code = self._code(event.get("name", ""))
        arguments = event.get("args")
        if not isinstance(arguments, dict):
            arguments = {}
        if self.detailed[code]:
            self.details[index] = arguments
        if "Input Dims" in arguments:
            self.shapes[index] = arguments["Input Dims"]
            if str(event.get("name")) in PRODUCTS:
                self.types[index] = arguments.get("Input type")
        told = (event.get("pid"), arguments.get("device"), arguments.get("rank"))
        try:
            owner = self.owners[told]
        except (KeyError, TypeError):  # new, or a list
            process, device, rank = (
                one if isinstance(one, (int, str, type(None))) else str(one) for one in told
            )
            owner = self.owners.setdefault((process, device, rank), len(self.owners))
        category = self._category(event.get("cat", ""))
        thread = self._thread(event.get("tid"))
        correlation = _whole(arguments.get("correlation", -1))
        self.rows.extend((code, category, start, start + lasts, thread, correlation, owner))

    def _code(self, name: object) -> int:
        text = name if isinstance(name, str) else str(name)
        code = self.codes.get(text)
        if code is None:
            code = self.codes[text] = len(self.codes)
            self.detailed.append(carries_details(text))
        return code

    def _category(self, given: object) -> int:
        key = str(given)
        code = self._categories.get(key)
        if code is None:
            name = key.lower()
            if name.endswith(("runtime", "_driver")):
                name = "runtime"
            name = _ALIASES.get(name, name)
            code = CATEGORIES.index(name) if name in CATEGORIES else 0
            self._categories[key] = code
        return code

    def _thread(self, given: object) -> int:
        """Return a thread's number; one below zero for a thread that has a name instead.

        Before torch 1.11 streams were threads with names, such as ``stream 7``.
        """
        number = _whole(str(given).removeprefix("stream "))
        if number >= 0 or given is None:
            return number
        return self._threads.setdefault(str(given), -2 - len(self._threads))

    def _correct(self, name: NDArray[np.int64], category: NDArray[np.int64]) -> None:
        """Correct the categories of what a device did that is no kernel."""
        of_mtia = any(name.lower() == "mtia_ccp_events" for name in self._categories)
        for begins, told in _NO_KERNEL if of_mtia else _BLITS:
            codes = [code for text, code in self.codes.items() if begins.match(text)]
            category[np.isin(name, codes) & (category >= _ON_DEVICE)] = CATEGORIES.index(told)

    def events(self, about: Mapping[str, Any]) -> Events:
        """Return the columns, with time counted from the first event."""
        columns = np.frombuffer(self.rows, dtype=np.int64).reshape(-1, _NUM_COLUMNS).T.copy()
        name, category, start, end, thread, correlation, owner = columns
        self._correct(name, category)
        kept = _possible(start, end, category)
        num_left_out = self.num_left_out + int(np.sum(~kept))
        kept[_repeated(columns)] = False
        first = int(start[kept].min()) if kept.any() else 0
        job = about.get("distributedInfo")
        job = job if isinstance(job, dict) else {}
        rank, world_size = _whole(job.get("rank")), _whole(job.get("world_size"))
        events = Events(
            names=list(self.codes),
            name=name.astype(np.int32),
            category=category.astype(np.int8),
            start_ns=start - first,
            end_ns=end - first,
            thread=thread,
            correlation=correlation,
            details=self.details,
            shapes=self.shapes,
            types=self.types,
            num_left_out=num_left_out,
            owners=list(self.owners),
            owner=owner.astype(np.int32),
            rank=rank if rank >= 0 else None,
            world_size=world_size if world_size > 0 else None,
            groups=_groups(job),
            clock_offset_ns=first + max(_whole(about.get("baseTimeNanoseconds")), 0),
        )
        return events if kept.all() else events.only(kept)


def _possible(
    start: NDArray[np.int64], end: NDArray[np.int64], category: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Return which events can be where the file has them.

    CUPTI gives kernels the time 0 when it lost their time stamps. An event a day from the others is
    none of the trace; neither is a kernel far from all that the host did.
    """
    possible = np.ones(len(start), dtype=bool)
    counting = category > 0
    if not counting.any():
        return possible
    on_device = category >= _ON_DEVICE
    middle = np.sort(start[counting])[counting.sum() // 2]  # of two halves, that of the later
    near = (np.abs(start - middle) < _LONGEST_TRACE_NS) & (end - start < _LONGEST_TRACE_NS)
    known = near & counting & ~on_device
    on_host = known.any()
    known = known if on_host else near & counting
    if not known.any():
        possible[counting] = False
        return possible
    first = int(start[known].min())
    last = int(end[known].max() if on_host else start[known].max())
    slack = max(last - first, _SLACK_NS if on_host else _SLACK_ALONE_NS)
    apart = (start < first - slack) | (end > last + slack)
    lost = (start == 0) & ((end == 0) | (on_host and first > 0))
    possible[counting] = near[counting]
    possible[on_device & (apart | lost)] = False
    return possible


def _repeated(columns: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return what the device did once and the file has again, but for the first of each."""
    ran = np.flatnonzero((columns[1] >= _ON_DEVICE) & (columns[3] > columns[2]))
    order = ran[np.lexsort(columns[[0, 5, 4, 2]][:, ran])]
    return order[1:][np.all(columns[:, order[1:]] == columns[:, order[:-1]], axis=0)]


def nanoseconds(microseconds: object) -> int | None:
    """Return a time stamp or duration as whole nanoseconds; None: it is none.

    Args:
        microseconds: A whole number, or text as it stood in the file.
    """
    try:
        if type(microseconds) is int:
            whole = microseconds * 1000
        elif (
            isinstance(microseconds, str) and microseconds[-4:-3] == "." and "e" not in microseconds
        ):  # Kineto's own way of writing it
            whole = int(microseconds[:-4] + microseconds[-3:])
        else:
            number = Decimal(str(microseconds))
            if not number.is_finite() or number.adjusted() > _MOST_DIGITS:
                return None  # as a whole number it would have as many digits as its exponent says
            whole = round(number * 1000)
    except (InvalidOperation, ValueError):
        return None
    return whole if abs(whole) < _LARGEST else None


def _groups(job: Mapping[str, Any]) -> dict[str, int]:
    listed = job.get("pg_config")
    groups = {}
    for group in listed if isinstance(listed, list) else ():
        if isinstance(group, dict) and _whole(group.get("pg_size")) > 0:
            groups[str(group.get("pg_name"))] = _whole(group["pg_size"])
    return groups


def _whole(value: object) -> int:
    """Return a number that may be written as text; -1: it is none, or below zero."""
    if type(value) is not int:
        try:
            value = int(str(value))
        except ValueError:
            return -1
    return value if 0 <= value < _LARGEST else -1
