"""One DeepSpeed training as a case of the suite and as a user's script: the same step time?

``.venv-frameworks/bin/python -m benchmarks.framework_script_vs_case [ROUNDS]``, eight by default,
in the environment with the frameworks. Each round launches both on two ranks through the command
line, in alternating order, and the ratios of the rounds' step times are judged together. Target:
the 95 % interval of the difference contains zero. Half a minute a round.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.paired import paired_difference
from benchmarks.same_deepspeed import CASE
from benchmarks.verdict import print_section

ROUNDS = 8
RUN = [sys.executable, "-m", "scalebench", "run", "--gpus", "2", "--quick", "--no-report"]
SUITE = "benchmarks-same-deepspeed"
SCRIPT = ["--", "-m", "benchmarks.same_deepspeed", "--batch", "16"]
WAYS = {
    "case": (f"frameworks.{CASE}.n2", ["frameworks", "-k", CASE], []),
    "script": (
        f"{SUITE}.script.n2",
        [],
        ["--", "-m", "benchmarks.same_deepspeed", "--batch", "16"],
    ),
}


def step_s(way: str, out: Path) -> float:
    """Run it once; return the step time, seconds."""
    row, what, script = WAYS[way]
    command = [*RUN, *what, "--no-trace", "--only", row, "--out", str(out), *script]
    variables = os.environ | {"TORCH_CPP_LOG_LEVEL": "ERROR"}
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert not done.returncode, done.stderr
    rows = json.loads((out / "summary.json").read_text())["rows"]
    (found,) = (row for row in rows if row["world_size"] == 2)
    return float(found["step_s"]["value"])


def main(rounds: int) -> None:
    """Run both in turns, and print the difference."""
    seen: dict[str, list[float]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(rounds):
            for way in sorted(WAYS, reverse=bool(number % 2)):
                seen[way].append(step_s(way, Path(folder, f"{way}{number}")))
    difference = paired_difference(seen["script"], seen["case"])
    shown = {way: ", ".join(f"{1e3 * step:.1f}" for step in seen[way]) for way in WAYS}
    print_section(
        f"{CASE} on two ranks, as a case and as a script: ms per step",
        *(f"{way:7}{steps}" for way, steps in shown.items()),
        f"the script takes {difference} longer",
        f"zero is {'inside: PASS' if difference.low <= 0 <= difference.high else 'outside: FAIL'}",
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if sys.argv[1:] else ROUNDS)
