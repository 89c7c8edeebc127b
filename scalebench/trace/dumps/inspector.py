"""Reads NCCL Inspector's dumps: one JSON object a line, for each collective that had ended.

Format v4.0: plugins/profiler/inspector of NVIDIA/nccl. It counts each kind of collective of a
communicator by itself, and ranks as the communicator does.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError
from scalebench.trace.dumps.calls import Call, Dumps, number, text


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
                        call, ranks = _call(json.loads(line))
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


def _call(record: dict[str, Any]) -> tuple[Call, Sequence[int]]:
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
