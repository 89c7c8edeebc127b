"""Kill processes of runs at random moments, and count what was lost: ``make faults``.

Ranks, the process that forks them and the launcher are killed, or asked to end. A fault is survived
when what it may not touch goes on: a rank's death leaves the run running, or ended with its exit
code; a launcher's leaves no process behind, and a run that is readable and goes on with --resume.
A result is lost when a cell that was stored before a fault is missing, unreadable or another one
after it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from scalebench.analysis.run import load_run
from scalebench.records.run import CellResult
from tests.processes import left_after

TROUBLED = Path(__file__).parents[1] / "tests" / "integration" / "troubled.py"
RUN = (
    *("run", "ddp", "-k", "static", "--gpus", "1,2", "--workload", "troubled:healthy"),
    *("--batch-size", "16", "--steps", "20", "--repeats", "100", "--no-report"),
)
LARGEST_RUN = 60
"""Results in a run before another one is begun: a summary is made anew at every end."""
LARGEST_PAUSE_S = 0.8
START_LIMIT_S = 60.0
END_LIMIT_S = 20.0


@dataclass(frozen=True)
class Fault:
    """A signal to one process of a run.

    Attributes:
        exit_codes: Of the launcher; empty: it has to go on.
    """

    target: str
    number: signal.Signals
    weight: float
    exit_codes: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """What the table calls it."""
        return f"{self.target} {self.number.name}"


FAULTS = (
    Fault("rank", signal.SIGKILL, 0.50),
    Fault("rank", signal.SIGSEGV, 0.25),
    Fault("launcher", signal.SIGKILL, 0.09, (-signal.SIGKILL,)),
    Fault("launcher", signal.SIGTERM, 0.06, (143,)),
    Fault("launcher", signal.SIGINT, 0.05, (130,)),
    Fault("zygote", signal.SIGKILL, 0.05, (5,)),
)


@dataclass
class Campaign:
    """Faults so far, by name, and what became of them."""

    chance: random.Random
    folder: Path
    injected: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def start(self) -> "subprocess.Popen[str]":
        """Start a run, or go on with the one that is there."""
        there = 0 < len(self.stored()) <= LARGEST_RUN
        arguments = ("run", "--resume", "r", "--no-report") if there else (*RUN, "--out", "r")
        if not there:
            subprocess.run(["rm", "-rf", str(self.folder / "r")], check=True)
        return subprocess.Popen(
            [sys.executable, "-m", "scalebench", *arguments],
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,  # a pipe that nobody reads would hold the run up
            text=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def one_run(self, num_faults: int, deadline: float) -> None:
        """Start a run and inject faults until it ends, or there have been enough."""
        launcher = self.start()
        began = time.monotonic()
        try:
            while launcher.poll() is None and self.injected.total() < num_faults:
                if time.monotonic() > deadline:
                    return
                time.sleep(self.chance.uniform(0.0, LARGEST_PAUSE_S))
                (fault,) = self.chance.choices(FAULTS, [fault.weight for fault in FAULTS])
                victim = find_victim(launcher.pid, fault.target)
                if victim is None:
                    waited = time.monotonic() - began
                    assert waited < START_LIMIT_S or self.injected, "no rank within a minute"
                    continue
                self.inject(fault, victim, launcher)
        finally:
            launcher.kill()
            launcher.communicate()

    def inject(
        self, fault: Fault, victim: psutil.Process, launcher: "subprocess.Popen[str]"
    ) -> None:
        """Inject one fault and see what becomes of it."""
        before = self.stored()
        family = [psutil.Process(launcher.pid), *children(launcher.pid)]
        try:
            victim.send_signal(fault.number)
        except psutil.NoSuchProcess:
            return
        self.injected[fault.name] += 1
        complaint = self.aftermath(fault, victim, launcher, family)
        if complaint is None:
            self.survived[fault.name] += 1
        else:
            self.complaints.append(f"{fault.name}: {complaint}")
        after = self.stored()
        self.lost += [i for i, r in before.items() if not_kept(r, after.get(i))]

    def aftermath(
        self,
        fault: Fault,
        victim: psutil.Process,
        launcher: "subprocess.Popen[str]",
        family: list[psutil.Process],
    ) -> str | None:
        """Say what went on that should not have, or the other way round; None: all is well."""
        if not fault.exit_codes:
            if left_after([victim]):
                return "the rank is still there"
            ended = launcher.poll()
            return None if ended in (None, 0, 4) else f"the launcher left with exit code {ended}"
        try:
            launcher.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            return "the launcher is still there"
        if left := left_after(family):
            return f"left: {', '.join(left)}"
        if launcher.returncode not in (*fault.exit_codes, 0, 4):
            return f"the launcher left with exit code {launcher.returncode}"
        return None

    def stored(self) -> dict[str, CellResult]:
        """Return the results that can be read now."""
        root = self.folder / "r"
        return dict(load_run(root).results) if (root / "run.json").is_file() else {}

    def table(self) -> str:
        """Return the counts as text."""
        lines = [f"{'fault':<20} {'injected':>8} {'survived':>8}"]
        for name in sorted(self.injected):
            lines.append(f"{name:<20} {self.injected[name]:>8} {self.survived[name]:>8}")
        total = (self.injected.total(), self.survived.total(), len(self.lost))
        summary = "{} injected, {} survived, {} results lost".format(*total)
        return "\n".join([*lines, *self.complaints, summary])


def not_kept(before: CellResult, after: CellResult | None) -> bool:
    """Tell whether a result is gone; one that had failed may have been replaced by another try."""
    return after is None or (before.status == "ok" and after != before)


def children(pid: int) -> list[psutil.Process]:
    """Return the processes below one, as far as they are still there."""
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def find_victim(launcher: int, target: str) -> psutil.Process | None:
    """Return a process of a run, or None where there is none just now.

    Launcher and zygote are only taken while there are ranks: the run has begun.
    """
    family = children(launcher)
    try:
        ranks = [p for p in family if p.ppid() != launcher]
        parents = [p for p in family if p.ppid() == launcher]
    except psutil.NoSuchProcess:
        return None
    if not ranks or not parents:
        return None
    return {"rank": ranks[-1], "zygote": parents[0], "launcher": psutil.Process(launcher)}[target]


def main() -> int:
    """Run a campaign, print its table; the exit code is 1 when anything was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1500.0, help="seconds")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        (Path(folder) / "troubled.py").write_text(TROUBLED.read_text())
        os.environ["XDG_CACHE_HOME"] = folder
        campaign = Campaign(random.Random(asked.seed), Path(folder))
        deadline = time.monotonic() + asked.limit
        while campaign.injected.total() < asked.kills and time.monotonic() < deadline:
            campaign.one_run(asked.kills, deadline)
        print(campaign.table())
        enough = campaign.injected.total() >= asked.kills
        return 0 if enough and not campaign.complaints and not campaign.lost else 1


if __name__ == "__main__":
    sys.exit(main())
