"""What scalebench costs as ranks grow from 64 to 4,096, and how it grows: fitted exponents.

Records of ranks that threads play reach rank 0 over the store (200 steps each, 64 to 1,024 ranks);
a made-up run is summarised and its page rendered (500 steps each, 64 to 4,096 ranks, no traces in
the records); ``scalebench trace`` reads one file per rank (200,000 events each, 4 to 64 files).
Fresh processes each; imports do not count, but for ``trace``.

    make bench-scale
"""

import gzip
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.large_run import write_large_run
from benchmarks.verdict import against_limit, print_section

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "traces"
NUM_EVENTS = 200_000
ROUNDS = 3
RECORDS, RUNS, FILES = (64, 256, 1024), (64, 512, 4096), (4, 16, 64)

# A process inherits the peak memory of the one that starts it: so that is a small one.
_MEASURE = """
import resource, subprocess, sys, time
began = time.perf_counter()
code = subprocess.call(sys.argv[1:])
wall_s = time.perf_counter() - began
print(wall_s, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""


@dataclass(frozen=True)
class Cost:
    """What one fresh process took from start to end, and its largest resident set."""

    wall_s: float
    peak_bytes: int
    output: str


def run(command: Sequence[str]) -> Cost:
    """Run a command in a fresh process."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        check=True,
    )
    output, _, measured = done.stdout.rstrip("\n").rpartition("\n")
    wall_s, peak_kib = measured.split()
    return Cost(float(wall_s), int(peak_kib) * 1024, output)


def told_by(*arguments: str) -> dict[str, float]:
    """Run a module of the benchmarks in a fresh process; return what it prints as JSON."""
    found: dict[str, float] = json.loads(run([sys.executable, "-m", *arguments]).output)
    return found


def gathered(num_ranks: int) -> dict[str, float]:
    """Return seconds until all records were read and checked."""
    found = told_by("benchmarks.gather", "--ranks", str(num_ranks), "--steps", "200")
    assert found["whole"] == num_ranks, f"only {found['whole']} records of {num_ranks} arrived"
    return {"s": found["took_s"]}


def summarised(folder: Path) -> dict[str, float]:
    """Return seconds and bytes of reading, summarising and rendering a run."""
    found = told_by("benchmarks.render_once", str(folder))
    page_s = found["page_s"]
    return {"summary s": found["render_s"] - page_s, "page s": page_s, "bytes": found["peak_bytes"]}


def traced(files: list[Path]) -> dict[str, float]:
    """Return seconds and the largest process's bytes of analysing one file per rank."""
    found = run([sys.executable, "-m", "scalebench", "trace", *map(str, files), "--json"])
    assert len(json.loads(found.output)["files"]) == len(files)
    return {"s": found.wall_s, "bytes": float(found.peak_bytes)}


def exponent(by_size: Mapping[int, float]) -> float:
    """Return k of ``cost ∝ size^k``, fitted to the logarithms."""
    slope, _ = np.polyfit(np.log(list(by_size)), np.log(list(by_size.values())), 1)
    return float(slope)


def grown(name: str, by_size: Mapping[int, float], limit: float | None, unit: str = "s") -> str:
    """Return a line: what the largest size costs beside its limit, and the exponent."""
    largest = max(by_size)
    cost = by_size[largest] / (1e6 if unit == "MB" else 1)
    told = f"{cost:.2f} {unit}" if limit is None else against_limit(cost, limit, unit)
    return f"{name:<38}{largest:>6,}  grows with size^{exponent(by_size):.2f}  {told}"


def medians(each: list[dict[str, float]]) -> dict[str, float]:
    """Return the median of every figure."""
    return {name: median(one[name] for one in each) for name in each[0]}


def write_repeated(source: Path, target: Path, num_events: int) -> int:
    """Write ``source`` several times over, one after the other; return how many events it has."""
    trace = json.loads(gzip.decompress(source.read_bytes()))
    timed = [event for event in trace["traceEvents"] if "ts" in event]
    first = min(event["ts"] for event in timed)
    length = max(event["ts"] + event.get("dur", 0) for event in timed) - first + 1
    copies = -(-num_events // len(trace["traceEvents"]))
    trace["traceEvents"] = [
        shifted(event, copy, length) for copy in range(copies) for event in trace["traceEvents"]
    ]
    with gzip.open(target, "wt", compresslevel=1) as file:
        json.dump(trace, file)
    return len(trace["traceEvents"])


def shifted(event: Mapping[str, Any], copy: int, length_us: float) -> dict[str, Any]:
    """Return an event as it stands in the given copy of the trace."""
    moved = dict(event)
    if "ts" in moved:
        moved["ts"] = round(moved["ts"] + copy * length_us, 3)
    if "id" in moved:
        moved["id"] += copy * 10_000_000
    step = re.fullmatch(r"(ProfilerStep#)(\d+)", str(moved.get("name")))
    if step:
        moved["name"] = f"{step[1]}{int(step[2]) + 100 * copy}"
    arguments = dict(moved.get("args", {}))
    for key in ("correlation", "External id"):
        if key in arguments:
            arguments[key] += copy * 10_000_000
    return {**moved, "args": arguments} if "args" in moved else moved


def write_traces(folder: Path) -> list[Path]:
    """Write one trace per rank, each naming its own rank."""
    first = folder / "rank0.json.gz"
    write_repeated(GOLDEN / "nccl-2.17_2ranks_rank0.json.gz", first, NUM_EVENTS)
    trace = json.loads(gzip.decompress(first.read_bytes()))
    files = []
    for rank in range(max(FILES)):
        trace["distributedInfo"] = {"rank": rank, "world_size": max(FILES)}
        files.append(folder / f"rank{rank}.json.gz")
        with gzip.open(files[-1], "wt", compresslevel=1) as file:
            json.dump(trace, file)
    return files


def main() -> None:
    """Measure all three and print them."""
    records = {n: medians([gathered(n) for _ in range(ROUNDS)])["s"] for n in RECORDS}
    with tempfile.TemporaryDirectory() as folder:
        made = {n: write_large_run(Path(folder) / str(n), n, 500) for n in RUNS}
        runs = {n: medians([summarised(made[n]) for _ in range(ROUNDS)]) for n in RUNS}
    with tempfile.TemporaryDirectory() as folder:
        files = write_traces(Path(folder))
        traces = {n: traced(files[:n]) for n in FILES}
    print_section(
        f"At scale, simulated; medians of {ROUNDS} fresh processes, traces once",
        grown("records of ranks × 200 steps to rank 0", records, 10.0),
        grown("summary of ranks × 500 steps", {n: r["summary s"] for n, r in runs.items()}, 10.0),
        grown("its page", {n: r["page s"] for n, r in runs.items()}, 5.0),
        grown("memory of both", {n: r["bytes"] for n, r in runs.items()}, 1000.0, "MB"),
        grown("trace of files of 200,000 events", {n: t["s"] for n, t in traces.items()}, None),
        grown("its largest process", {n: t["bytes"] for n, t in traces.items()}, None, "MB"),
    )


if __name__ == "__main__":
    main()
