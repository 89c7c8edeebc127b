"""``scalebench trace`` beside HolisticTraceAnalysis 0.5.0: time, memory and the overlap they find.

``make bench-trace`` makes the environment in which HolisticTraceAnalysis is installed (it wants
other versions of pandas than a working environment has) and runs this module. By hand::

    python3 -m venv .venv-hta && .venv-hta/bin/pip install HolisticTraceAnalysis==0.5.0
    python -m benchmarks.trace_vs_hta --hta .venv-hta/bin/python

Both load a trace of 200,000 events and work out the overlap of communication and computation, each
time in a fresh process, interleaved. The trace is a golden one, repeated; times, correlations and
step numbers are shifted, so that every copy stands for itself.

HolisticTraceAnalysis takes the kernels that were launched before the last profiler step began, as
does ``--window steps``. It rounds starts up and ends down to microseconds unless
``HTA_DISABLE_NS_ROUNDING`` is set: the two are held against each other unrounded, and its default
is shown beside. Its idle times by cause are in tests/unit/trace.
"""

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import click

from benchmarks.verdict import print_section
from scalebench.trace.job import analyse_job

GOLDEN = Path(__file__).parents[1] / "tests" / "golden" / "traces"
NUM_EVENTS = 200_000
MOST_OF_HTA = 0.5
MOST_APART = 0.01

_HTA = """
import sys
from hta.trace_analysis import TraceAnalysis
analysis = TraceAnalysis(trace_files={0: sys.argv[1]}, trace_dir="")
print("RESULT", analysis.get_comm_comp_overlap(visualize=False).comp_comm_overlap_pctg[0])
"""

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
    """What one fresh process took from start to end.

    Attributes:
        peak_bytes: Its largest resident set.
    """

    wall_s: float
    peak_bytes: int
    output: str


@click.command()
@click.option(
    "--hta", default=".venv-hta/bin/python", help="Python that has HolisticTraceAnalysis."
)
@click.option("--rounds", default=5, help="Fresh processes of each kind.")
def main(hta: str, rounds: int) -> None:
    """Print time and memory of both, and the overlap they find."""
    with tempfile.TemporaryDirectory() as folder:
        large = Path(folder) / "large.json.gz"
        num_events = write_repeated(GOLDEN / "nccl-2.17_2ranks_rank0.json.gz", large, NUM_EVENTS)
        ours, theirs = interleaved(
            [
                [sys.executable, "-m", "scalebench", "trace", str(large), "--json"],
                [hta, "-c", _HTA, str(large)],
            ],
            rounds,
        )
        print_section(
            f"Load and analyse {num_events:,} events, medians of {rounds} fresh processes each",
            *(
                f"{name:<23}{median(c.wall_s for c in costs):6.2f} s"
                f"{median(c.peak_bytes for c in costs) / 1e6:8.0f} MB at most"
                for name, costs in (("scalebench", ours), ("HolisticTraceAnalysis", theirs))
            ),
            _share("time", [c.wall_s for c in ours], [c.wall_s for c in theirs]),
            _share("memory", [c.peak_bytes for c in ours], [c.peak_bytes for c in theirs]),
        )
        traces = (*sorted(GOLDEN.glob("nccl*ranks*.json.gz")), large)
        lines = [_compared(path, hta) for path in traces]
    print_section("Overlap in whole profiler steps (the last one left out)", *lines)


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


def interleaved(commands: Sequence[Sequence[str]], rounds: int) -> list[list[Cost]]:
    """Run the commands in turn; return the costs of each."""
    costs: list[list[Cost]] = [[] for _ in commands]
    for _ in range(rounds):
        for command, found in zip(commands, costs, strict=True):
            found.append(run(command))
    return costs


def run(command: Sequence[str], **variables: str) -> Cost:
    """Run a command in a fresh process; raise if it fails."""
    done = subprocess.run(
        [sys.executable, "-c", _MEASURE, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, **variables},
    )
    if done.returncode:
        raise click.ClickException(f"{command[0]} ended with {done.returncode}.")
    output, _, measured = done.stdout.rstrip("\n").rpartition("\n")
    wall_s, peak_kib = measured.split()
    return Cost(float(wall_s), int(peak_kib) * 1024, output)


def overlap_of_whole_steps(path: Path) -> float:
    """Return the overlap ratio that ``scalebench trace --window steps`` shows."""
    ratio = analyse_job([path], "steps").total.overlap_ratio
    assert ratio is not None
    return ratio


def overlap_by_hta(hta: str, path: Path, **variables: str) -> float:
    """Return the overlap ratio that HolisticTraceAnalysis finds; raise if it fails."""
    output = run([hta, "-c", _HTA, str(path)], **variables).output
    (line,) = [line for line in output.splitlines() if line.startswith("RESULT ")]
    return float(line.removeprefix("RESULT ")) / 100


def _compared(path: Path, hta: str) -> str:
    ours = overlap_of_whole_steps(path)
    theirs = overlap_by_hta(hta, path, HTA_DISABLE_NS_ROUNDING="1")
    rounded = overlap_by_hta(hta, path)
    met = "met" if abs(ours / theirs - 1) <= MOST_APART else "MISSED"
    return (
        f"{path.name:<38} scalebench {ours:.2%}, HolisticTraceAnalysis {theirs:.2%} "
        f"(rounded {rounded:.2%}), target within {MOST_APART:.0%} of it: {met}"
    )


def _share(what: str, ours: Sequence[float], theirs: Sequence[float]) -> str:
    share = median(ours) / median(theirs)
    met = "met" if share <= MOST_OF_HTA else "MISSED"
    return f"{what}: {share:.2f} of HolisticTraceAnalysis's, target at most {MOST_OF_HTA}: {met}"


if __name__ == "__main__":
    main()
