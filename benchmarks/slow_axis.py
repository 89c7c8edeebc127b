"""Plant a slow link between two racks, and see whether the axis that crosses it is named.

``python -m benchmarks.slow_axis``. Four virtual hosts in two racks train a mesh of shards and
tensor groups twice: once with the shards across the racks, once with the tensor groups. Ranks of
one rack talk at 200 Mbit/s, and racks at 25. Which axis crosses the racks follows from the order of
the mesh alone; which one costs most is what the traces say.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

NUM_HOSTS, HOSTS_PER_RACK = 4, 2
NUM_ORDERS = 2
CASES = "outside or (shard-tensor and not 4 and not data and not pipeline)"
LINKS = ("--link-intra", "200mbit", "--link-inter", "25mbit", "--hosts-per-rack", "2")


def run(out: Path, more: list[str]) -> None:
    """Measure both orders on four hosts."""
    subprocess.run(
        [
            *(sys.executable, "-m", "scalebench", "run", "mesh", "-k", CASES),
            *("--gpus", str(NUM_HOSTS), "--launcher", "lab", *LINKS, "--cpus-per-rank", "0.4"),
            *("--workload", "gpt-tiny", "--batch-size", "4", "--repeats", "1", "--quick"),
            "--no-report",
            *("--out", str(out), *more),
        ],
        check=True,
    )


def crosses_racks(groups: list[list[int]]) -> bool:
    """Tell whether a group of an axis has ranks of several racks."""
    return any(len({rank // HOSTS_PER_RACK for rank in group}) > 1 for group in groups)


def named_axis(row: dict[str, Any]) -> str:
    """Return the axis with most exposed communication."""
    return str(max(row["axes"], key=lambda axis: axis["exposed_s"])["axis"])


def lines(rows: list[dict[str, Any]]) -> tuple[list[str], int]:
    """Return what is said of each order, and in how many the planted axis is not the one found."""
    told, num_wrong = [], 0
    for row in rows:
        if row["world_size"] != NUM_HOSTS or not row["axes"]:
            continue
        planted = [axis["axis"] for axis in row["axes"] if crosses_racks(axis["groups"] or [])]
        found = named_axis(row)
        whole_s = sum(axis["exposed_s"] for axis in row["axes"])
        share = max(axis["exposed_s"] for axis in row["axes"]) / whole_s
        told.append(
            f"{row['case']:<22} across the racks: {', '.join(planted):<8} found: {found:<8} "
            f"{100 * share:.0f} % of the exposed communication"
        )
        num_wrong += planted != [found]
    return told, num_wrong


def verdict(told: list[str], num_wrong: int) -> int:
    """Return the exit code: 0 where both orders were measured, and both axes found."""
    return 1 if num_wrong or len(told) < NUM_ORDERS else 0


def main() -> None:
    """Run both orders, or read a run; exit with 1 where an axis is not found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--read", type=Path, help="a run; nothing is measured")
    given, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as folder:
        out = given.read or Path(folder) / "run"
        if given.read is None:
            run(out, more)
        summary = json.loads((out / "summary.json").read_text())
    told, num_wrong = lines(summary["rows"])
    print("\n".join(told))
    sys.exit(verdict(told, num_wrong))


if __name__ == "__main__":
    main()
