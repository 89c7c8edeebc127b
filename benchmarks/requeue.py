"""How long a job takes to train again after Slurm has requeued it, phase by phase.

``python -m benchmarks.requeue [--ranks 2] [--repeats 3] [--waits 1]``, as root, with munge and
Slurm installed; 4 minutes. It starts a private cluster on this machine and has a rank killed and a
rank raise: ``--waits`` times as Slurm does it, which waits 120 s before it starts a requeued job,
and ``--repeats`` times told to start it at once. Beside it: the same failures under torchrun.
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path
from statistics import mean

from benchmarks.checkpoint_stall import make_cell
from benchmarks.verdict import print_section
from scalebench.errors import EnvironmentUnfit
from scalebench.launch.local import LocalLauncher
from scalebench.records.recovery import FaultTimeline
from scalebench.session.recovery.faults import measure_faults
from scalebench.session.recovery.requeue import own_node
from scalebench.spec.recovery import PHASES, Recovery, Restarter
from tests.cluster.slurm import Slurm


def failures(by: Restarter, num_ranks: int, repeats: int, at_once: bool) -> list[FaultTimeline]:
    """Have ranks fail and be started again; each way to fail so often."""
    with tempfile.TemporaryDirectory(prefix="scalebench-bench-") as folder, LocalLauncher() as here:
        recovery = Recovery(
            directory=folder,
            restarted_by=(by,),
            faults=("kill", "raise"),
            fault_repeats=repeats,
            elastic=False,
            requeue_at_once=at_once,
        )
        cell = make_cell(num_ranks).model_copy(update={"purpose": "fail", "recovery": recovery})
        result = measure_faults(here, cell, Path(folder) / "logs", "2026-01-01T00:00:00+00:00")
    if result.status != "ok":
        raise SystemExit(f"{by}: {result.reason}")
    return result.faults


def report(title: str, timelines: list[FaultTimeline]) -> None:
    """Print the mean of each phase and the range of the totals, by the way the rank failed."""
    for kind in dict.fromkeys(one.kind for one in timelines):
        of_kind = [one for one in timelines if one.kind == kind]
        totals = [one.total_s for one in of_kind]
        print_section(
            f"{title}, {kind}: mean of {len(of_kind)}",
            *(f"{name:12} {mean(one.phases_s[name] for one in of_kind):8.3f} s" for name in PHASES),
            f"{'total':12} {mean(totals):8.3f} s, from {min(totals):.3f} to {max(totals):.3f} s",
        )


def main() -> None:
    """Start the cluster, and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--waits", type=int, default=1)
    given = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("A private Slurm needs root: its slurmd starts jobs for other users.")
    with tempfile.TemporaryDirectory(prefix="scalebench-slurm-") as folder:
        cluster = Slurm(Path(folder))
        try:
            cluster.start()
            os.environ["SLURM_CONF"] = str(cluster.config)
            own_node()
            if given.repeats:
                report("torchrun", failures("torchrun", given.ranks, given.repeats, at_once=False))
                at_once = failures("slurm", given.ranks, given.repeats, at_once=True)
                report("Slurm, told to start at once", at_once)
            if given.waits:
                waiting = failures("slurm", given.ranks, given.waits, at_once=False)
                report("Slurm by itself", waiting)
        except (EnvironmentUnfit, FileNotFoundError, AssertionError) as error:
            sys.exit(f"There is no Slurm here: {error}")
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
