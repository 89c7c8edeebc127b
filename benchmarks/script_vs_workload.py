"""The same model as a script of a user's own and as a workload: the same efficiency?

``python -m benchmarks.script_vs_workload [OPTIONS OF RUN]``. Both are run by the command line, at
one rank and at two, weak scaling, pinned unless the options say ``--unpinned``. The script is
compared with DDP against DDP at N=1: a script has no bare model. Target: the difference of the
efficiencies at N=2 is not significant.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.same_model import BATCH
from benchmarks.verdict import print_section

RUN = [sys.executable, "-m", "scalebench", "run", "--gpus", "1,2", "--no-report", "--no-trace"]
WORKLOAD = ["ddp", "-k", "plain or (ddp and not bucket and not accumulate)"]
WORKLOAD += ["--workload", "benchmarks.same_model:workload"]
WORKLOAD += ["--scaling", "weak", "--batch-size", str(BATCH)]
SCRIPT = ["--", "-m", "benchmarks.same_model"]


def row_at_two(out: Path, case: str, options: list[str], what: list[str]) -> dict[str, Any]:
    """Run, and return a case's row at N=2."""
    command = [*RUN, "--out", str(out), *options, *what]
    done = subprocess.run(command, capture_output=True, text=True)
    assert not done.returncode, done.stderr
    rows = json.loads((out / "summary.json").read_text())["rows"]
    return next(row for row in rows if (row["case"], row["world_size"]) == (case, 2))


def main(options: list[str]) -> None:
    """Run both and print their efficiencies."""
    if "--unpinned" not in options:
        options = ["--pinned", *options]  # both alike
    with tempfile.TemporaryDirectory() as folder:
        workload = row_at_two(Path(folder, "w"), "ddp", options, WORKLOAD)
        script = row_at_two(Path(folder, "s"), "script", options, SCRIPT)
    one, two = workload["efficiency_wrapped"], script["efficiency"]
    apart = one["low"] > two["high"] or two["low"] > one["high"]
    print_section(
        "One model as a workload and as a script, N=2 against N=1",
        f"workload, DDP against DDP at N=1   {_shown(one)}, {_step(workload)}",
        f"script                             {_shown(two)}, {_step(script)}",
        f"the intervals {'are apart: FAIL' if apart else 'overlap: PASS'}",
    )


def _step(row: dict[str, Any]) -> str:
    return f"step {1e3 * row['step_s']['value']:.2f} ms"


def _shown(found: dict[str, float]) -> str:
    percent = [100 * found[name] for name in ("value", "low", "high")]
    return "{:.1f} % ({:.1f} to {:.1f})".format(*percent)


if __name__ == "__main__":
    main(sys.argv[1:])
