"""Scripts as people write them: steps under scalebench, and by their own clocks under torchrun.

``python -m benchmarks.scripts_by_their_own_clock [SCRIPT ...]``, of tests/integration/scripts, by
default those that need torch alone; a minute each: what watching a script costs its steps. Both run
on two ranks at the same time, in turns of half a second: the processes of one are stopped while the
other has the machine. So what the machine does affects both alike, and only steps that lie inside a
turn count. Neighbouring turns are compared. What evaluates or saves is longer than usual steps and
in no median. Target: the 95 % interval of the difference lies within ± 3 %.

That the clocks of a script and of scalebench agree in one process is a test of test_scripts.py.
"""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

import psutil

from benchmarks.paired import paired_difference
from benchmarks.verdict import print_section

SCRIPTS = Path("tests/integration/scripts").resolve()
DEFAULT = ("nanogpt", "mingpt", "imagenet", "fsdp2", "tensor_parallel")
STEPS = {"nanogpt_like": "100", "fsdp2_like": "100"}
LARGEST = 0.03
TURN_S = 0.5
FEWEST_STEPS = 3
"""In a turn, for it to count."""
WARM_UP = 20
"""First steps of a launch, which do not count."""
MEASURE = ("-m", "scalebench", "run", "--gpus", "2", "--quick", "--no-trace", "--no-report")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


@dataclass(frozen=True)
class Turn:
    """When one of both had the machine, on the clock that steps are timed with."""

    way: str
    start_ns: int
    end_ns: int


def send(run: "subprocess.Popen[str]", what: signal.Signals) -> None:
    """Send a signal to a run and all that it has started."""
    try:
        top = psutil.Process(run.pid)
        family = [top, *top.children(recursive=True)]
    except psutil.NoSuchProcess:
        return
    for process in family:
        try:
            process.send_signal(what)
        except psutil.NoSuchProcess:
            continue


def take_turns(
    runs: dict[str, "subprocess.Popen[str]"], until: Callable[[Iterable[bool]], bool] = any
) -> list[Turn]:
    """Give the machine to one after the other; return who had it when.

    Args:
        runs: Way → its process.
        until: Goes on while this of who still runs: any of them, or all.
    """
    turns: list[Turn] = []
    for run in runs.values():
        send(run, signal.SIGSTOP)
    while until(run.poll() is None for run in runs.values()):
        for way, run in runs.items():
            if run.poll() is not None:
                continue
            send(run, signal.SIGCONT)
            start_ns = time.monotonic_ns()
            time.sleep(TURN_S)
            end_ns = time.monotonic_ns()
            send(run, signal.SIGSTOP)
            turns.append(Turn(way, start_ns, end_ns))
    return turns


def steps_of(file: Path) -> Iterator[tuple[int, int]]:
    """Yield start and end of each step of rank 0 after the first ones, ns."""
    rank = json.loads(gzip.decompress(file.read_bytes()))["ranks"][0]
    for block in rank["blocks"]:
        end_ns = block["start_ns"]
        for number in range(block["first"], block["first"] + block["count"]):
            start_ns, end_ns = end_ns, end_ns + round(1e9 * rank["step_s"][number])
            if number >= WARM_UP:
                yield start_ns, end_ns


def neighbours(
    turns: Sequence[Turn], steps: dict[str, list[tuple[int, int]]]
) -> list[tuple[float, float]]:
    """Return the median steps of both in neighbouring turns, seconds, by name backwards.

    A pair is two turns that follow each other, and no turn is in two pairs.
    """
    found: list[tuple[float, float]] = []
    waiting: tuple[str, float] | None = None
    for turn in turns:
        inside = [
            (end - start) / 1e9
            for start, end in steps[turn.way]
            if turn.start_ns <= start and end <= turn.end_ns
        ]
        if len(inside) < FEWEST_STEPS:
            waiting = None
        elif waiting is None or waiting[0] == turn.way:
            waiting = turn.way, median(inside)
        else:
            pair = dict([waiting, (turn.way, median(inside))])
            first, second = sorted(pair, reverse=True)
            found.append((pair[first], pair[second]))
            waiting = None
    return found


def start(folder: Path, way: str, command: list[str]) -> "subprocess.Popen[str]":
    """Start one of both, with a folder of its own to write to."""
    (here := folder / way).mkdir()
    variables = os.environ | {"OMP_NUM_THREADS": "1"}
    with (folder / f"{way}.log").open("w") as log:
        return subprocess.Popen(
            [sys.executable, *command], stdout=log, stderr=log, text=True, cwd=here, env=variables
        )


def own_steps(log: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each step of the rank that printed first, ns, after the first ones."""
    found = re.search(r"ENDS (\[[^]]*\])", log)
    assert found, log[-2000:]
    yield from list(pairwise(json.loads(found[1])))[WARM_UP:]


def pairs_of(name: str, folder: Path) -> list[tuple[float, float]]:
    """Return the steps of a script under torchrun and under scalebench, by neighbouring turns."""
    script = str(SCRIPTS / f"{name}.py")
    row = f"{name.replace('_', '-')}.script.n2"
    steps = ("--steps", STEPS.get(name, "300"), "--only", row, "--out", str(folder / "run"))
    runs = {
        "scalebench": start(folder, "scalebench", [*MEASURE, *steps, "--", script, "."]),
        "torchrun": start(folder, "torchrun", [*TORCHRUN, script, "."]),
    }
    turns = take_turns(runs, until=all)
    send(runs["torchrun"], signal.SIGCONT)
    runs["torchrun"].send_signal(signal.SIGINT)  # its ranks leave, and print what they have
    runs["torchrun"].wait(timeout=60)
    assert not runs["scalebench"].wait(), (folder / "scalebench.log").read_text()
    (record,) = (folder / "run").glob(f"cells/{row}.r0.json.gz")
    own = own_steps((folder / "torchrun.log").read_text())
    return neighbours(turns, {"torchrun": list(own), "scalebench": list(steps_of(record))})


def main(names: list[str]) -> None:
    """Measure one script after the other, and print how the two differ."""
    lines = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder:
            pairs = pairs_of(name, Path(folder))
        own, ours = zip(*pairs, strict=True)
        apart = paired_difference(ours, own)
        verdict = "PASS" if apart.low >= -LARGEST and apart.high <= LARGEST else "INCONCLUSIVE"
        if apart.low > LARGEST or apart.high < -LARGEST:
            verdict = "FAIL"
        lines.append(f"{name}: {len(pairs)} pairs, {apart} longer under scalebench: {verdict}")
        print(lines[-1], file=sys.stderr)
    print_section("Steps under scalebench beside the scripts' own clocks under torchrun", *lines)


if __name__ == "__main__":
    main(sys.argv[1:] or [f"{name}_like" for name in DEFAULT])
