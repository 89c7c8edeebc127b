"""Reads dumps of torch.distributed's flight recorder: pickles and their JSON form.

Format: torch/csrc/distributed/c10d/FlightRecorder.hpp, versions 2.x. A pickle is read without any
of its globals: nothing in it is imported or called.
"""

import io
import json
import math
import pickle
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError
from scalebench.trace.dumps.calls import Call, Dumps, number, text
from scalebench.trace.operations.names import dtype_of, kind_of

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
