"""What launchers have in common that fork each rank from a process with torch imported."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import Launched, ProbeFailed
from scalebench.launch.monitor.node import NodeWatch, joined
from scalebench.launch.ranks import Ended, R
from scalebench.records.probes import ProbeRecord
from scalebench.records.rank import RankRecord
from scalebench.records.scratch import Scratch
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Cell, Device, Job, SharedLaunch
from scalebench.spec.faults import InjectedFault
from scalebench.spec.presets import CustomTarget
from scalebench.spec.probes import ClockCheck, Rehearsal, Sweep
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import World

ASK_LIMIT_S = 300.0


class ForkingLauncher(ABC):
    """A `Launcher` of which only the way to the processes is left open.

    Attributes:
        name: What a run calls it.
        shares: Whether it can launch cells that take turns.
        scratch: A folder of this launcher's own.
        world: The world that the ranks are taken from; None: they are made here.
        num_launches: Launches so far; each has its number.
        device_uuids: The GPUs here, as CUDA tells them; None: not asked yet.
    """

    name = "local"
    shares = False

    def __init__(self) -> None:
        self._scratch = Scratch()
        self.scratch = self._scratch.folder
        self.world: World | None = None
        self.num_launches = 0
        self.device_uuids: list[str] | None = None
        self.fault: dict[str, Any] = {}

    @abstractmethod
    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have a process of the worker answer a question.

        Raises:
            EnvironmentUnfit: It could not.
        """

    def ask_everywhere(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Have a process on every machine answer a question; see `ask`."""
        return [self.ask(request)]

    @abstractmethod
    def parents(self) -> list[int]:
        """Return the processes on this machine that fork ranks, once they are ready."""

    @abstractmethod
    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job to its end, or to the end of its time.

        Args:
            name: What the worker calls it.
            job: What to run.
            kind: What its ranks leave.
            logs: Folder for one log per rank; made here.
        """

    @abstractmethod
    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Put ranks on virtual hosts; raises EnvironmentUnfit when there can be none here."""

    def close(self) -> None:
        """Remove the scratch folder."""
        self._scratch.close()

    def _next_launch(self) -> int:
        self.num_launches += 1
        return self.num_launches

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Return what torch says of this machine; with ``rates``, measure its devices too."""
        answer = self.ask({"job": "survey", "rates": rates})
        self.device_uuids = [device["uuid"] for device in answer["devices"]]
        return answer

    def describe(self, target: CustomTarget, device: Device) -> dict[str, Any]:
        """Build the user's workload once and return what it is.

        Raises:
            UsageError: It cannot be used; the text says what is wrong with it.
        """
        workload = target.model_dump()
        request = {"job": "describe", "workload": workload, "batch_size": 2, "device": device}
        answer = self.ask(request)
        if "error" in answer:
            raise UsageError(answer["error"]["message"])
        return answer

    def why_not_compiled(self, device: Device) -> str | None:
        """Try ``torch.compile``; return why it does not work and the remedy, or None: it does."""
        answers = self.ask_everywhere({"job": "compile", "device": device})
        told = next((answer["uncompiled"] for answer in answers if answer["uncompiled"]), None)
        return told and f"{told['problem']} ({told['remedy']})"

    def schedule(self, name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
        """Return the passes of every rank in the order that torch has for a schedule.

        Raises:
            UsageError: torch refuses; the text says why.
        """
        sizes = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        answer = self.ask({"job": "schedule", "name": name, **sizes})
        if "error" in answer:
            raise UsageError(answer["error"]["message"])
        return list(answer["ranks"])

    def inject(self, what: InjectedFault | None) -> None:
        """Have ranks inject a fault from the next launch on, for the self-test; None: none."""
        self.fault = {} if what is None else {"fault": what.model_dump()}

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell to its end, or to the end of its time.

        Args:
            cell: What to run.
            logs: Folder for one log per rank; made here.
        """
        with self.watch(cell.device) as watch:
            ended = self.run_job("cell", cell, RankRecord, logs)
        return launched_of(ended, watch.track)

    def watch(self, device: Device) -> NodeWatch:
        """Return what watches this machine during a launch."""
        return NodeWatch(device, self.device_uuids, self.parents())

    def launch_shared(self, shared: SharedLaunch, logs: Sequence[Path]) -> list[Launched]:
        """Run cells that take turns to the end of all of them; see `Launcher.launch_shared`."""
        with self.watch(shared.device) as watch:
            ended = self.run_shared(shared, logs)
        return [Launched(one.records, None, None, one.wall_s, watch.track) for one in ended]

    def run_shared(self, shared: SharedLaunch, logs: Sequence[Path]) -> list[Ended[RankRecord]]:
        """Run cells that take turns; only where ``shares`` is true."""
        raise NotImplementedError(f"the launcher {self.name} starts one cell at a time")

    def probe(self, probe: Sweep | ClockCheck | Rehearsal, logs: Path) -> list[ProbeRecord]:
        """Run a probe; return what its ranks found, by rank.

        Args:
            probe: What to do.
            logs: As for `launch`.

        Raises:
            ProbeFailed: A rank did not come to its end.
        """
        self.parents()
        ended = self.run_job("probe", probe, ProbeRecord, logs)
        if ended.failure is not None:
            raise ProbeFailed(f"rank {ended.failure.rank}: {ended.failure.message}")
        return ended.records


def launched_of(ended: Ended[RankRecord], node: NodeTrack | None) -> Launched:
    """Return what a launch left behind, and what the machine did meanwhile."""
    first_steps = [r.first_step_ns for r in ended.records if r.first_step_ns is not None]
    if node is not None and ended.watched is not None:
        node = joined(node, ended.watched)
    launch_s = (max(first_steps) - ended.decided_ns) / 1e9 if first_steps else None
    return Launched(
        ended.records,
        ended.failure,
        launch_s,
        ended.wall_s,
        node,
        ended.lost,
        ended.noticed_ns,
        ended.stopped_ns,
    )


def fresh_logs(logs: Path, num_ranks: int) -> dict[int, Path]:
    """Return rank → its log, none of which is there yet, in a folder that is made here."""
    logs.mkdir(parents=True, exist_ok=True)
    paths = {rank: logs / f"rank{rank}.log" for rank in range(num_ranks)}
    for path in paths.values():
        path.unlink(missing_ok=True)
    return paths


def cannot_answer(request: dict[str, Any], said: str) -> EnvironmentUnfit:
    """Return the error of a question that got no answer."""
    return EnvironmentUnfit(
        f"The worker could not answer {request['job']!r}: {said or 'no output'}"
    )
