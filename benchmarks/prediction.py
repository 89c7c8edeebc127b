"""Predict the steps of eight virtual hosts from one, two and four, and hold that against them.

``make bench-predict``. Fixed-duration computation, so that two cores are not the confound; real
DDP, real gloo, real TCP over links of a known rate. About 27 minutes on two quiet cores.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean
from typing import Any

SUITE = Path(__file__).with_name("prediction_suite.py")
LAWS = ("cost model", "bandwidth term", "Amdahl", "USL", "constant efficiency", "Gustafson")
MEAN_TARGET, WORST_TARGET, COVERAGE_TARGET = 0.05, 0.10, 0.85


def on_hosts(suite: Path, sizes: str, link: str, out: Path, *more: str) -> dict[str, Any]:
    """Measure a suite on virtual hosts with a fifth of a core each; return its summary."""
    subprocess.run(
        [
            *(sys.executable, "-m", "scalebench", "run", str(suite), "--gpus", sizes),
            *("--launcher", "lab", "--link", link, "--cpus-per-rank", "0.2"),
            *("--out", str(out), "--no-report", *more),
        ],
        check=True,
        cwd=suite.parent.parent,
    )
    return dict(json.loads((out / "summary.json").read_text()))


def main() -> None:
    """Run the suite and print errors and coverage; exit with 1 where a target is missed."""
    with tempfile.TemporaryDirectory() as folder:
        summary = on_hosts(SUITE, "1,2,4,8", "50mbit", Path(folder) / "run")
    left_out = summary["model"]["left_out"]
    print(f"\n{'N=8 from N=1, 2, 4':<20}" + "".join(f"{law:>21}" for law in LAWS))
    for found in left_out:
        errors = "".join(f"{100 * found['errors'][law]:>+20.1f} %" for law in LAWS)
        print(f"{found['case']:<20}{errors}")
    means = {law: fmean(abs(f["errors"][law]) for f in left_out) for law in LAWS}
    print(f"{'mean error':<20}" + "".join(f"{100 * means[law]:>20.1f} %" for law in LAWS))
    rows, within = summary["model"]["num_rows"], summary["model"]["num_within"]
    worst = max(abs(found["errors"]["cost model"]) for found in left_out)
    print(f"90 % intervals hold {within} of {rows} rows; worst error at N=8 {100 * worst:.1f} %")
    best = all(means["cost model"] < means[law] for law in LAWS[1:])
    met = means["cost model"] <= MEAN_TARGET and worst <= WORST_TARGET
    sys.exit(0 if met and best and within >= COVERAGE_TARGET * rows else 1)


if __name__ == "__main__":
    main()
