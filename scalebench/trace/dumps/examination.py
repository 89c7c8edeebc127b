"""Which ranks are behind, where their calls do not fit, and what bandwidth each call reached."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from scalebench.costmodel.links.laws import OPERATIONS, busbw_factor
from scalebench.errors import UsageError
from scalebench.grouping import by_key
from scalebench.trace.dumps.calls import Call, Dumps, Source, read_flight_recorder, read_inspector
from scalebench.trace.operations.names import kind_of

FORMAT = "scalebench.dumps/1"
_START_BYTES = 4096
_RECORDER_KEYS = (b'"collective_seq_id"', b'"comm_lib_version"', b'"nccl_version"', b'"pg_status"')
_INSPECTOR_KEYS = (b'"coll_perf"', b'"p2p_perf"')


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
