"""What a reader of a job's traces has to know, in sentences."""

import re
from collections.abc import Mapping, Sequence

from scalebench.trace.files.file_ranks import RankTrace
from scalebench.trace.files.reading import ReadTrace
from scalebench.trace.timeline import Timeline

_TAKEN_FROM = {
    "device": "the number of the device",
    "file name": "the file names",
    "order": "the order given",
}
_MOST_NAMED = 8
_REMEDY = " If they communicate, name them: --communication REGEX."


def given_twice(names: Sequence[str]) -> list[str]:
    """Name the files that were given more than once."""
    twice = [name for name in dict.fromkeys(names) if names.count(name) > 1]
    return [f"{name} was given {names.count(name)} times and is counted once." for name in twice]


def left_out(read: Mapping[str, ReadTrace]) -> list[str]:
    """Say how many events of each file do not count."""
    found = {file: one.num_left_out for file, one in read.items() if one.num_left_out}
    return [
        f"{num} {'event' if num == 1 else 'events'} of {file} without a valid time "
        f"{'is' if num == 1 else 'are'} left out."
        for file, num in found.items()
    ]


def about_ranks(
    traces: Sequence[RankTrace], world_size: int | None, assumed: int | None
) -> list[str]:
    """Say which ranks were given, and how it is known which they are.

    ``world_size`` is by the traces' own word; ``assumed``: ranks that waits were told for, where
    the traces do not say.
    """
    notices = []
    num_ranks = len({trace.rank for trace in traces})
    if world_size is not None and num_ranks < world_size:
        were = "was" if num_ranks == 1 else "were"
        notices.append(f"{num_ranks} of the job's {world_size} ranks {were} given.")
    sources = {trace.rank_from for trace in traces} - {"trace"}
    if len(traces) > 1 and sources:
        told_by = " and ".join(_TAKEN_FROM[source] for source in sorted(sources))
        notices.append(f"Some traces do not say which rank they are of; taken from {told_by}.")
    elif sources == {"order"} and world_size != 1 and _communicates(traces[0].timeline):
        notices.append("The trace does not say which rank it is of; it counts as rank 0.")
    for file in dict.fromkeys(trace.file for trace in traces if trace.part):
        parts = [trace.part for trace in traces if trace.file == file]
        told = _listed(parts)
        notices.append(
            f"{file} holds {len(parts)} ranks or devices, each counted by itself: {told}."
        )
    if num_ranks < len(traces):
        notices.append("Several traces are of the same rank; they are of different jobs or times.")
    if assumed is not None:
        notices.append(
            f"The traces do not say how many ranks the job has; it is taken for the {assumed} "
            "given."
        )
    return notices


def about_kernels(
    traces: Sequence[RankTrace], num_ranks: int, communication: re.Pattern[str] | None
) -> list[str]:
    """Say what of the communication is missing, was not recognised, or may be more."""
    notices = []
    if len({trace.timeline.on_gpu for trace in traces}) > 1:
        notices.append("Some traces show GPU kernels and others none: they cannot be compared.")
    unknown = sum(op.kind == "unknown" for trace in traces for op in trace.timeline.operations)
    if unknown:
        notices.append(f"The kind of {unknown} operations is not known; all totals include them.")
    suspected = [trace.timeline for trace in traces if trace.timeline.unknown]
    if suspected:
        notices.append(
            "Some kernels may be communication but are not known to be; they count as compute."
            + (_REMEDY if num_ranks > 1 and not all(map(_is_silent, suspected)) else "")
        )
    for trace in traces:
        if num := trace.timeline.num_early:
            begin, their = ("kernel begins", "its") if num == 1 else ("kernels begin", "their")
            notices.append(
                f"{num} {begin} before {their} launch on rank {trace.rank}, so {their} times "
                "cannot be true; they count as the trace has them."
            )
    for trace in traces:
        calls = trace.timeline.calls
        if calls.num_unseen:
            have = "has" if calls.num_unseen == 1 else "have"
            notices.append(
                f"{calls.num_unseen} of {calls.num} {calls.backend} calls of rank {trace.rank} "
                f"{have} no {calls.lack} in the trace: its communication is not complete."
            )
    if num_ranks > 1:
        notices += _unrecognised(
            [trace for trace in traces if _is_silent(trace.timeline)], num_ranks
        )
    if communication and not any(trace.timeline.num_named for trace in traces):
        notices.append(
            f"--communication {communication.pattern} is found in the name of no GPU kernel."
        )
    return notices


def _unrecognised(silent: Sequence[RankTrace], num_ranks: int) -> list[str]:
    if not silent:
        return []
    ranks = _listed([str(trace.rank) for trace in silent])
    where = f"trace of rank {ranks}" if len(silent) == 1 else f"traces of ranks {ranks}"
    suspected = any(trace.timeline.unknown for trace in silent)
    which = "the kernels named below" if suspected else "some of its kernels"
    return [
        f"No communication was recognised in the {where}, of a job of {num_ranks} ranks. "
        f"If {which} communicate, name them: --communication REGEX."
    ]


def _is_silent(timeline: Timeline) -> bool:
    return timeline.on_gpu and not timeline.operations and not timeline.calls.num_unseen


def _communicates(timeline: Timeline) -> bool:
    return bool(timeline.operations or timeline.calls.num)


def _listed(items: Sequence[str]) -> str:
    return ", ".join(items[:_MOST_NAMED]) + (", …" if len(items) > _MOST_NAMED else "")
