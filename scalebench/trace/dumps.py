"""Calls of collectives as dumps tell them: which ranks are behind, what does not fit, bandwidths.

The flight recorder writes pickles, or JSON. Format: torch/csrc/distributed/c10d/FlightRecorder.hpp,
versions 2.x. A pickle is read without any of its globals: nothing in it is imported or called.

NCCL Inspector writes a JSON object a line, for each collective that had ended. Format v4.0:
plugins/profiler/inspector of NVIDIA/nccl. It counts each kind of collective of a communicator by
itself, and ranks as the communicator does.
"""

import io
import json
import math
import pickle
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from scalebench.costmodel.links.laws import OPERATIONS, busbw_factor
from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.trace.operations.communication_kernels import dtype_of, kind_of

_LARGEST = 2**62

Source = Literal["flight recorder", "NCCL Inspector"]
FORMAT = "scalebench.dumps/1"
_START_BYTES = 4096
_RECORDER_KEYS = (b'"collective_seq_id"', b'"comm_lib_version"', b'"nccl_version"', b'"pg_status"')
_INSPECTOR_KEYS = (b'"coll_perf"', b'"p2p_perf"')


def number(value: object) -> float:
    """Return a number of a dump; raises ValueError where it is none, below zero, or too large."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError(f"a number is missing: {type(value).__name__} is none")
    found = float(value)
    if not 0 <= found < _LARGEST:
        raise ValueError(f"{found:g} is out of range")
    return found


def text(value: object) -> str:
    """Return a text of a dump; raises ValueError where it is a list, or another thing."""
    if not isinstance(value, str | int):
        raise ValueError(f"a text is missing: {type(value).__name__} is none")
    return str(value)


@dataclass(frozen=True)
class Call:
    """One collective on one rank.

    Attributes:
        group: Name of its process group or communicator, the same on all its ranks.
        sequence: Number among the collectives that are counted together.
        name: As the library calls it, ``all_reduce``.
        elements_in: Elements that the rank handed in; None: not told. ``elements_out`` likewise.
        num_bytes: The full size, as nccl-tests counts; None: not told.
        finished: Whether it had ended when the dump was taken.
        lasted_s: Time on the device; None: not recorded.
        where: The innermost line of code outside torch, ``train.py:12``; empty: not recorded.
        busbw_byte_per_s: As the dump itself tells it; None: it does not.
    """

    group: str
    rank: int
    sequence: int
    name: str
    elements_in: int | None = None
    elements_out: int | None = None
    dtype: str = ""
    num_bytes: int | None = None
    finished: bool = True
    lasted_s: float | None = None
    where: str = ""
    busbw_byte_per_s: float | None = None

    @property
    def size(self) -> str:
        """What has to fit between the ranks, as text: of which side depends on the operation."""
        kind, uneven = kind_of(self.name), self.name.endswith(("_v", "_v_single"))
        sides = [self.elements_in, self.elements_out]
        if kind == "all_to_all":
            return self.dtype  # only the sums over all ranks have to fit
        if kind == "scatter" or (kind == "all_gather" and uneven):
            sides = [self.elements_out]
        elif kind in ("gather", "reduce") or (kind == "reduce_scatter" and uneven):
            sides = [self.elements_in]
        counts = " → ".join(str(side) for side in dict.fromkeys(sides) if side is not None)
        if not counts and self.num_bytes is not None:
            return f"{self.num_bytes} bytes"
        return f"{counts} {self.dtype}".strip()


@dataclass(frozen=True)
class Dumps:
    """The dumps of one job.

    Attributes:
        members: Group → its ranks, where the dumps tell them.
        given: Group → ranks of which a dump was given.
        pending: Point-to-point operations that had not ended, as text.
    """

    source: Source
    calls: tuple[Call, ...]
    members: Mapping[str, frozenset[int]]
    given: Mapping[str, frozenset[int]]
    pending: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()


_RANK = re.compile(r"(\d+)(\.json|\.pkl|\.pickle|\.pt|\.bin)?$")
_MOST_DIMS, _MOST_TENSORS = 64, 65_536
_TORCH = ("/torch/", "<frozen ")


class _PlainUnpickler(pickle.Unpickler):
    """Builds numbers, texts, lists, tuples and dictionaries, and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        raise pickle.UnpicklingError(f"it names {module}.{name}, and a dump names nothing")


def read_flight_recorder(files: Sequence[Path]) -> Dumps:
    """Return the calls in the dumps of several ranks.

    Raises:
        UsageError: A file is no such dump, or its rank is not in its name, or given twice.
    """
    ranks: dict[int, Path] = {}
    for file in files:
        number = _RANK.search(file.name)
        if not number:
            raise UsageError(
                f"{file} does not tell its rank: the name of a flight recorder dump ends in it, "
                "as in nccl_trace_rank_3."
            )
        same = ranks.setdefault(int(number[1]), file)
        if same != file:
            raise UsageError(f"{same} and {file} are both of rank {number[1]}: give one of them.")
    given = frozenset(ranks)
    calls: list[Call] = []
    members: dict[str, frozenset[int]] = {}
    pending: list[str] = []
    for rank, file in sorted(ranks.items()):
        dump = _content(file)
        try:
            known = _groups(dump.get("pg_config"))
            for entry in dump["entries"]:
                call = _call(entry, rank, known, members)
                if entry.get("is_p2p"):
                    if not call.finished:
                        pending.append(
                            f"rank {rank}: {call.name} of {call.size} {call.where}".strip()
                        )
                else:
                    calls.append(call)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            why = f"{type(error).__name__}: {error}"
            raise UsageError(f"{file} is no dump of the flight recorder ({why}).") from error
    groups = {call.group for call in calls}
    for group in groups - set(members):  # gloo does not list its ranks
        users = frozenset(call.rank for call in calls if call.group == group)
        members[group] = given if group.startswith("default_pg ") else users
    return Dumps(
        "flight recorder", tuple(calls), members, dict.fromkeys(groups, given), tuple(pending)
    )


def _content(file: Path) -> Mapping[str, Any]:
    try:
        data = file.read_bytes()
        if data.lstrip()[:1] == b"{":
            content = json.loads(data)
        else:
            content = _PlainUnpickler(io.BytesIO(data)).load()
    except OSError as error:
        raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # a damaged pickle may raise whatever it likes
        raise UsageError(f"{file} cannot be read as a flight recorder dump: {error}.") from error
    if not isinstance(content, dict) or not isinstance(content.get("entries"), list):
        raise UsageError(f"{file} is no dump of the flight recorder: it has no entries.")
    return content


def _groups(config: Any) -> dict[str, frozenset[int]]:
    """Return name → ranks of the process groups that a dump lists with their ranks."""
    listed = config.items() if isinstance(config, dict) else ()
    ranks = {str(name): json.loads(about["ranks"]) for name, about in listed}
    return {name: frozenset(map(int, numbers)) for name, numbers in ranks.items() if numbers}


def _call(
    entry: Mapping[str, Any],
    rank: int,
    known: Mapping[str, frozenset[int]],
    members: dict[str, frozenset[int]],
) -> Call:
    name, description = (text(part) for part in entry["process_group"])
    group = f"{'group' if description in ('', 'undefined') else description} {name}"
    if name in known:
        # A group that was split off may have its parent's name: its ranks tell it apart.
        if members.setdefault(group, known[name]) != known[name]:
            group = f"{group} {sorted(known[name])}"
        members[group] = known[name]
    inputs, outputs = _elements(entry["input_sizes"]), _elements(entry["output_sizes"])
    operation = text(entry["profiling_name"]).partition(":")[2]
    dtypes = {text(d): None for s in ("input", "output") for d in entry.get(f"{s}_dtypes", ())}
    dtype = dtype_of(next(iter(dtypes))) if len(dtypes) == 1 else None
    full = outputs if kind_of(operation) == "all_gather" else inputs
    lasted_ms = entry.get("duration_ms")
    return Call(
        group=group,
        rank=rank,
        sequence=int(number(entry["collective_seq_id"])),
        name=operation,
        elements_in=inputs,
        elements_out=outputs,
        dtype=dtype[0] if dtype else " ".join(dtypes),
        num_bytes=full * dtype[1] if dtype else None,
        finished=entry["state"] == "completed" or bool(entry.get("retired")),
        lasted_s=number(lasted_ms) / 1e3 if lasted_ms else None,
        where=_where(entry.get("frames") or ()),
    )


def _elements(sizes: Any) -> int:
    if len(sizes) > _MOST_TENSORS or any(len(shape) > _MOST_DIMS for shape in sizes):
        raise ValueError("a tensor has too many dimensions")
    extents = ([number(extent) for extent in shape] for shape in sizes)
    return int(number(sum(math.prod(shape) for shape in extents)))


def _where(frames: Sequence[Mapping[str, Any]]) -> str:
    for frame in frames:
        file = text(frame["filename"])
        if not any(part in file for part in _TORCH):
            return f"{Path(file).name}:{text(frame['line'])}"
    return ""


def read_inspector(files: Sequence[Path]) -> Dumps:
    """Return the calls in the dumps of several processes.

    Raises:
        UsageError: A file cannot be read, or nothing in it is a record of the Inspector.
    """
    calls: dict[tuple[str, int, int], Call] = {}
    members: dict[str, frozenset[int]] = {}
    num_torn = 0
    for file in files:
        num_before = len(calls)
        try:
            with file.open(encoding="utf-8", errors="replace") as lines:
                for line in lines:
                    try:
                        call, ranks = _ended_call(json.loads(line))
                    except (LookupError, TypeError, ValueError, AttributeError, RecursionError):
                        num_torn += bool(line.strip())
                        continue
                    calls[call.group, call.rank, call.sequence] = call
                    members[call.group] = frozenset(ranks)
        except OSError as error:
            raise UsageError(f"{file} cannot be read: {error.strerror or error}.") from error
        if len(calls) == num_before:
            raise UsageError(f"{file} has no record of NCCL Inspector.")
    seen: dict[str, set[int]] = {}
    for call in calls.values():
        seen.setdefault(call.group, set()).add(call.rank)
    torn = [f"{num_torn} lines are no records of the Inspector and left out."] if num_torn else []
    return Dumps(
        "NCCL Inspector",
        tuple(calls.values()),
        members,
        {group: frozenset(ranks) for group, ranks in seen.items()},
        notices=tuple(torn),
    )


def _ended_call(record: dict[str, Any]) -> tuple[Call, Sequence[int]]:
    """Return a record's call and the ranks that take part in it, as far as they count with it."""
    about, rank = record["header"], int(number(record["header"]["rank"]))
    ranks: Sequence[int] = range(int(number(about["n_ranks"])))
    if rank not in ranks:
        raise ValueError("the rank is not one of the communicator's")
    prefix = "coll" if "coll_perf" in record else "p2p"
    figures = record[f"{prefix}_perf"]
    name, named = text(figures[prefix]), (text(about.get(key, "")) for key in ("comm_name", "id"))
    group = " ".join((name, "of", *filter(None, named)))
    if prefix == "p2p":
        group, ranks = f"{group}, rank {rank} with {text(figures['p2p_peer'])}", [rank]
    lasted_us = number(figures[f"{prefix}_exec_time_us"])
    busbw_gb_per_s = number(figures[f"{prefix}_busbw_gbs"])
    call = Call(
        group=group,
        rank=rank,
        sequence=int(number(figures[f"{prefix}_sn"])),
        name=name,
        num_bytes=int(number(figures[f"{prefix}_msg_size_bytes"])),
        lasted_s=lasted_us / 1e6 or None,
        busbw_byte_per_s=busbw_gb_per_s * 1e9 or None,
    )
    return call, ranks


@dataclass(frozen=True)
class Mismatch:
    """The first call of a group that does not fit between its ranks.

    Attributes:
        what: ``order``: the ranks called different operations; ``size``: of different sizes.
        by_text: What was called → by whom.
    """

    sequence: int
    what: Literal["order", "size"]
    by_text: dict[str, list[int]]


@dataclass(frozen=True)
class Behind:
    """A rank that did not make its group's last call.

    Attributes:
        last: Number of its own last call; None: it made none.
        name: The operation of that call; empty: there is none. ``where`` likewise.
    """

    rank: int
    last: int | None
    name: str = ""
    where: str = ""


@dataclass(frozen=True)
class GroupState:
    """How far the ranks of one group came.

    Attributes:
        last: Number of the last call that any of them made.
        name: Its operation; several where the ranks differ.
        missing: Ranks that did not make it.
        without_dump: Ranks of the group of which nothing was given.
        unfinished: Ranks that made it and had not ended it.
        where: The line of code that made it.
    """

    group: str
    ranks: list[int]
    last: int
    name: str
    missing: tuple[Behind, ...]
    without_dump: list[int]
    unfinished: list[int]
    where: str
    mismatch: Mismatch | None


@dataclass(frozen=True)
class Bandwidth:
    """All calls of a group with the same operation and size.

    Attributes:
        lasted_s: Median over the calls; of each, the shortest of its ranks, as others also wait.
        busbw_byte_per_s: Likewise; None: the operation has no law.
    """

    group: str
    name: str
    num_ranks: int
    num_bytes: int
    count: int
    lasted_s: float
    busbw_byte_per_s: float | None


@dataclass(frozen=True)
class Examination:
    """What the dumps of a job say."""

    source: Source
    groups: tuple[GroupState, ...]
    bandwidths: tuple[Bandwidth, ...]
    pending: tuple[str, ...]
    notices: tuple[str, ...]


def find_dumps(paths: Sequence[str]) -> dict[Path, Source]:
    """Return which files are dumps, by their first bytes; of a folder, the files right in it.

    Raises:
        UsageError: Some files are dumps and others are not.
    """
    found: dict[Path, Source] = {}
    others: list[Path] = []
    for path in map(Path, paths):
        folder = path.is_dir()
        for file in sorted(path.iterdir()) if folder else [path]:
            source = _source(file)
            if source is not None:
                found[file] = source
            elif not folder:
                others.append(file)
    if found and others:
        raise UsageError(
            f"{next(iter(found))} is a dump of collectives and {others[0]} is none: give traces "
            "and dumps in two calls."
        )
    return found


def _source(file: Path) -> Source | None:
    try:
        with file.open("rb") as opened:
            start = opened.read(_START_BYTES)
    except OSError:
        return None
    if start[:1] == b"\x80" and start[1:2] in b"\x02\x03\x04\x05":
        return "flight recorder"
    if not start.lstrip().startswith(b"{") or b'"traceEvents"' in start:
        return None
    if any(key in start for key in _INSPECTOR_KEYS):
        return "NCCL Inspector"
    return "flight recorder" if any(key in start for key in _RECORDER_KEYS) else None


def examine(files: Mapping[Path, Source]) -> list[Examination]:
    """Read the dumps of a job and say what they show, by their source.

    Raises:
        UsageError: One of them cannot be read.
    """
    readers = {"flight recorder": read_flight_recorder, "NCCL Inspector": read_inspector}
    return [
        _examined(read([file for file, kind in files.items() if kind == source]))
        for source, read in readers.items()
        if source in files.values()
    ]


def as_json(examinations: Sequence[Examination]) -> dict[str, Any]:
    """Return what ``--json`` prints."""
    return {"format": FORMAT, "sources": [asdict(one) for one in examinations]}


def _examined(dumps: Dumps) -> Examination:
    by_group: dict[str, dict[int, dict[int, list[Call]]]] = {}
    for call in dumps.calls:
        sequences = by_group.setdefault(call.group, {})
        sequences.setdefault(call.sequence, {}).setdefault(call.rank, []).append(call)
    bandwidths = [
        found for group, calls in by_group.items() for found in _bandwidths(group, calls, dumps)
    ]
    notices = list(dumps.notices)
    if not bandwidths:
        notices.append(
            "The dumps do not say how long a collective took; of NCCL's they do with "
            "TORCH_NCCL_ENABLE_TIMING=1."
        )
    return Examination(
        dumps.source,
        tuple(_state(group, calls, dumps) for group, calls in sorted(by_group.items())),
        tuple(sorted(bandwidths, key=lambda found: -found.count * found.lasted_s)),
        dumps.pending,
        tuple(notices),
    )


def _state(group: str, calls: Mapping[int, Mapping[int, list[Call]]], dumps: Dumps) -> GroupState:
    ranks = dumps.members.get(group, frozenset())
    given = dumps.given[group] & ranks
    last = max(calls)
    own_last: dict[int, Call] = {}
    for sequence in sorted(calls):
        own_last.update({rank: made[-1] for rank, made in calls[sequence].items()})
    made = [own[-1] for own in calls[last].values()]
    behind = []
    for rank in sorted(given - set(calls[last])):
        own = own_last.get(rank)
        behind.append(
            Behind(rank, own.sequence, own.name, own.where) if own else Behind(rank, None)
        )
    return GroupState(
        group=group,
        ranks=sorted(ranks),
        last=last,
        name=" or ".join(sorted({call.name for call in made})),
        missing=tuple(behind),
        without_dump=sorted(ranks - given),
        unfinished=sorted(call.rank for call in made if not call.finished),
        where=made[0].where,
        mismatch=next(filter(None, (_mismatch(n, calls[n], ranks) for n in sorted(calls))), None),
    )


def _mismatch(
    sequence: int, by_rank: Mapping[int, list[Call]], ranks: frozenset[int]
) -> Mismatch | None:
    orders = _by_text((rank, [call.name for call in calls]) for rank, calls in by_rank.items())
    if len(orders) > 1:
        return Mismatch(sequence, "order", orders)
    sizes = _by_text(
        (rank, [f"{call.name} of {call.size}" for call in calls]) for rank, calls in by_rank.items()
    )
    if len(sizes) > 1:
        return Mismatch(sequence, "size", sizes)
    calls = [call for own in by_rank.values() for call in own]
    if set(by_rank) == ranks and all(kind_of(call.name) == "all_to_all" for call in calls):
        sums = [sum(getattr(call, f"elements_{s}") or 0 for call in calls) for s in ("in", "out")]
        if sums[0] != sums[1]:
            text = f"{calls[0].name}: {sums[0]} elements are sent and {sums[1]} expected"
            return Mismatch(sequence, "size", {text: sorted(by_rank)})
    return None


def _by_text(called: Iterable[tuple[int, list[str]]]) -> dict[str, list[int]]:
    return by_key((", ".join(texts), rank) for rank, texts in sorted(called))


def _bandwidths(
    group: str, calls: Mapping[int, Mapping[int, list[Call]]], dumps: Dumps
) -> Iterable[Bandwidth]:
    num_ranks = len(dumps.members[group])
    found: dict[tuple[str, int], list[Call]] = {}
    for by_rank in calls.values():
        timed = [c for own in by_rank.values() for c in own if len(own) == 1 and c.lasted_s]
        if timed and timed[0].num_bytes:
            shortest = min(timed, key=lambda call: call.lasted_s or 0.0)
            found.setdefault((shortest.name, timed[0].num_bytes), []).append(shortest)
    for (name, num_bytes), quickest in found.items():
        lasted_s = median(call.lasted_s or 0.0 for call in quickest)
        told = [c.busbw_byte_per_s for c in quickest if c.busbw_byte_per_s is not None]
        op = kind_of(name)
        busbw = median(told) if told else None
        if busbw is None and op in OPERATIONS:
            busbw = num_bytes / lasted_s * busbw_factor(op, num_ranks)
        yield Bandwidth(group, name, num_ranks, num_bytes, len(quickest), lasted_s, busbw)
