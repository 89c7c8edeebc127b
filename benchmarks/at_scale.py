"""What scalebench costs as ranks grow from 64 to 4,096, and how it grows: fitted exponents.

Records of ranks that threads play reach rank 0 over the store (200 steps each, 64 to 1,024 ranks);
a made-up run is summarised and its page rendered (500 steps each, 64 to 4,096 ranks, no traces in
the records); ``scalebench trace`` reads one file per rank (200,000 events each, 4 to 64 files).
Fresh processes each; imports do not count, but for ``trace``.

    make bench-scale
"""

import gzip
import json
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.large_run import write_large_run
from benchmarks.trace_vs_hta import GOLDEN, NUM_EVENTS, run, write_repeated
from benchmarks.verdict import against_limit, print_section

ROUNDS = 3
RECORDS, RUNS, FILES = (64, 256, 1024), (64, 512, 4096), (4, 16, 64)


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
