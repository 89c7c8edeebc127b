"""One DeepSpeed training as a case of the suite and as a user's script: the same step time?

``.venv-frameworks/bin/python -m benchmarks.framework_script_vs_case [ROUNDS]``, 4 by default, in
the environment with the frameworks; 80 s a round. Each round launches both on two ranks
through the command line. Both train at the same time, in turns of half a second: the processes of
one are stopped while the other has the machine. So what the machine does in the minutes of a round
affects both alike, and only steps that lie inside a turn count. Neighbouring turns are compared.
Target: the 95 % interval of the difference contains zero, and is not wider than ± 5 %.
"""

import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from benchmarks.paired import Difference, paired_difference
from benchmarks.same_deepspeed import CASE
from benchmarks.verdict import print_section

ROUNDS = 4
STEPS = 400
TURN_S = 0.5
FEWEST_STEPS = 3
"""In a turn, for it to count."""
WARM_UP = 20
"""First steps of a launch, which do not count."""
WIDEST = 0.05
"""Half of an interval that still says something."""
RUN = [
    *(sys.executable, "-m", "scalebench", "run", "--gpus", "2"),
    *("--quick", "--steps", str(STEPS), "--no-report", "--no-trace"),
]
SUITE = "benchmarks-same-deepspeed"
WAYS = {
    "case": (f"frameworks.{CASE}.n2", ["frameworks", "-k", CASE], []),
    "script": (
        f"{SUITE}.script.n2",
        [],
        ["--", "-m", "benchmarks.same_deepspeed", "--batch", "16"],
    ),
}


@dataclass(frozen=True)
class Turn:
    """When one of both had the machine, on the clock that steps are timed with."""

    way: str
    start_ns: int
    end_ns: int


def launch(way: str, out: Path) -> "subprocess.Popen[str]":
    """Start one of both."""
    row, what, script = WAYS[way]
    command = [*RUN, *what, "--only", row, "--out", str(out), *script]
    variables = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    with Path(f"{out}.log").open("w") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, text=True, env=variables)


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


def one_round(folder: Path, order: Sequence[str]) -> list[tuple[float, float]]:
    """Run both in turns; return what `neighbours` does. The case is inspected before, alone."""
    outs = {way: folder / way for way in order}
    runs = {"case": launch("case", outs["case"])}
    while not any(outs["case"].glob("cells/*.inspect.json.gz")) and runs["case"].poll() is None:
        time.sleep(0.1)
    runs["script"] = launch("script", outs["script"])
    turns = take_turns({way: runs[way] for way in order})
    for way, run in runs.items():
        assert not run.returncode, Path(f"{outs[way]}.log").read_text()
    steps = {}
    for way, out in outs.items():
        (file,) = out.glob(f"cells/{WAYS[way][0]}.r0.json.gz")
        steps[way] = list(steps_of(file))
    return neighbours(turns, steps)


def main(rounds: int) -> None:
    """Run both in turns, and print the difference."""
    pairs: list[tuple[float, float]] = []
    medians = []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            (here := Path(folder, str(number))).mkdir()
            found = one_round(here, sorted(WAYS, reverse=bool(number % 2)))
            assert found, "no neighbouring turns with steps of both: give it more STEPS"
            script_s, case_s = (median(one) for one in zip(*found, strict=True))
            medians.append(f"script {1e3 * script_s:.1f}, case {1e3 * case_s:.1f}")
            print(f"round {number}: {medians[-1]} ms, {len(found)} pairs", file=sys.stderr)
            pairs += found
    script, case = zip(*pairs, strict=True)
    difference = paired_difference(script, case)
    print_section(
        f"{CASE} on two ranks, as a script and as a case: ms per step, by round",
        *medians,
        f"the script takes {difference} longer",
        verdict(difference),
    )


def verdict(difference: Difference) -> str:
    """Say whether both take the same, as far as the interval lets one say it."""
    if not difference.low <= 0 <= difference.high:
        return "zero is outside: FAIL"
    if difference.half_width > WIDEST:
        return f"zero is inside, but the interval is wider than ± {100 * WIDEST:g} %: INCONCLUSIVE"
    return "zero is inside: PASS"


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
