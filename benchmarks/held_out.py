"""Links of known rate: is it found again, and are sizes predicted that the fit has not seen?

``python -m benchmarks.held_out``. Virtual hosts at rates drawn at random; of every operation and
number of ranks the fit sees every second size and predicts the others. Targets: the fitted
bandwidth within 2 % of what TCP leaves of the rate, held-out sizes within 3 % in the mean. 7
minutes on two quiet cores.

The sizes are those that the link decides: a shaped link lets its burst through at once
(`scalebench.launch.lab.topology.burst_bytes`), so a message has to be many bursts long before its
time says anything about the rate. What TCP leaves of the rate is known, too: less where data and
acknowledgements share a direction (`scalebench.spec.virtual_hosts.BOTH_WAYS_SHARE`). Operations are
those that keep a link busy: gloo's all-gather now and then sends one way only while it could send
both.
"""

import random
import statistics
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

from benchmarks.verdict import against_limit
from scalebench.costmodel.links.fitting import fit_link
from scalebench.costmodel.links.profile import CalibratedPoint, LinkProfile
from scalebench.records.storage.files import read_model
from scalebench.spec.virtual_hosts import BOTH_WAYS_SHARE, PAYLOAD_SHARE

RATES, SEED = 3, 20261121
RATE_TARGET, SIZE_TARGET = 0.02, 0.03
OPERATIONS = ("all_reduce", "send_recv")
SMALLEST_BYTES, LARGEST = 256 * 1024, "8Mi"
"""A part of a fourth is still two bursts long."""


def main() -> None:
    """Calibrate at every rate; exit with 1 where a target is missed."""
    draw = random.Random(SEED)
    rates, sizes = [], []
    for _ in range(RATES):
        rate_mbit = draw.randint(40, 150)
        for points in _groups(_calibrated(rate_mbit)):
            share = PAYLOAD_SHARE if points[0].op == "send_recv" else BOTH_WAYS_SHARE
            rate_error, size_errors = judged(points, rate_mbit * 1e6 / 8 * share)
            rates.append(abs(rate_error))
            sizes += size_errors
            print(
                f"{rate_mbit:>4} Mbit/s  {points[0].op:<10}  N={points[0].world_size}  bandwidth "
                f"{100 * rate_error:+.2f} %   held-out sizes "
                f"{100 * statistics.fmean(size_errors):.2f} % in the mean",
                flush=True,
            )
    print(f"bandwidth, worst: {against_limit(100 * max(rates), 100 * RATE_TARGET, '%')}")
    mean = statistics.fmean(sizes)
    print(f"held-out sizes, mean of {len(sizes)}: {against_limit(100 * mean, 3, '%')}")
    sys.exit(0 if max(rates) <= RATE_TARGET and mean <= SIZE_TARGET else 1)


def judged(points: list[CalibratedPoint], known: float) -> tuple[float, list[float]]:
    """Return the error of the fitted bandwidth, and of each size that the fit has not seen.

    Args:
        points: Of one operation at one number of ranks, every size once, rising.
        known: Bandwidth that the link has, bytes per second.
    """
    fit = fit_link(points)
    bandwidth = fit.regimes[-1].bandwidth_byte_per_s or 0.0
    seen = fit_link([*points[::2], *([points[-1]] if len(points) % 2 == 0 else [])])
    left_out = points[1:-1:2]
    errors = [abs(seen.predict(p.size_bytes).time_s / p.time_s - 1) for p in left_out]
    return bandwidth / known - 1, errors


def _groups(profile: LinkProfile) -> list[list[CalibratedPoint]]:
    groups: dict[tuple[str, int], list[CalibratedPoint]] = defaultdict(list)
    for point in profile.points:
        if point.size_bytes >= SMALLEST_BYTES:
            groups[point.op, point.world_size].append(point)
    return [sorted(group, key=lambda point: point.size_bytes) for group in groups.values()]


def _calibrated(rate_mbit: int) -> LinkProfile:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "profile.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "scalebench", "calibrate", "--gpus", "2,4"),
                *("--op", ",".join(OPERATIONS), "--max-bytes", LARGEST),
                *("--launcher", "lab", "--link", f"{rate_mbit}mbit"),
                *("--cpus-per-rank", "0.4", "--out", str(out)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        return read_model(out, LinkProfile)


if __name__ == "__main__":
    main()
