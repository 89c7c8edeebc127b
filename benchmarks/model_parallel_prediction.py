"""Predict the steps of eight virtual hosts that divide a model, and hold that against them.

``python -m benchmarks.model_parallel_prediction``. Transformers whose linear layers take a known
time (`benchmarks.paced_layers`; the rest computes with a fifth of a core for each host), and real
TCP over links of a known rate. Each case is predicted from its step at
one rank or its shard alone, and from links calibrated in the same run. Other arguments go to
``scalebench run``: ``--quick -k ulysses`` is one case, in two minutes on two cores. Nothing else
may use them: otherwise the shares of the CPU do not hold, and neither does the result.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.prediction import on_hosts

SUITE = Path(__file__).with_name("model_parallel_suite.py")
MEAN_TARGET, WORST_TARGET = 0.05, 0.10
NUM_HOSTS = 8


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], list[float]]:
    """Return what is said of every case on eight hosts, and the errors that are known."""
    told, errors = [], []
    for row in rows:
        if row["world_size"] != NUM_HOSTS:
            continue
        error = row["prediction_error"]
        if error is None:
            why = row["unavailable"].get("predicted_step_s") or row["reason"]
            told.append(f"{row['case']:<20} no prediction: {why}")
            continue
        errors.append(error)
        measured_s, predicted_s = row["step_s"]["value"], row["predicted_step_s"]
        told.append(
            f"{row['case']:<20}{1e3 * measured_s:>9.0f} ms measured{1e3 * predicted_s:>9.0f} ms "
            f"predicted{100 * error:>+8.1f} %"
        )
    return told, errors


def main() -> None:
    """Run the suite and print the errors; exit with 1 where a target is missed."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        summary = on_hosts(SUITE, f"1,{NUM_HOSTS}", "100mbit", out, *sys.argv[1:])
    told, errors = lines(summary["rows"])
    print("\n".join(told))
    if not errors:
        sys.exit(1)
    mean, worst = sum(map(abs, errors)) / len(errors), max(map(abs, errors))
    print(f"mean {100 * mean:.1f} %, target at most {100 * MEAN_TARGET:g} %; ", end="")
    print(f"worst {100 * worst:.1f} %, target at most {100 * WORST_TARGET:g} %")
    sys.exit(0 if mean <= MEAN_TARGET and worst <= WORST_TARGET else 1)


if __name__ == "__main__":
    main()
