"""What a launcher offers to the session, and what launchers have in common."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, TypeVar

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.monitor.node import NodeWatch, joined
from scalebench.records.folder import Scratch
from scalebench.records.measured.probes import ProbeRecord
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.trace import NodeTrack
from scalebench.records.run import Failure
from scalebench.spec import Cell, Device, Job, SharedLaunch
from scalebench.spec.presets import CustomTarget
from scalebench.spec.probes import ClockCheck, InjectedFault, Rehearsal, Sweep
from scalebench.spec.world import VirtualHosts, World

ASK_LIMIT_S = 300.0

R = TypeVar("R", RankRecord, ProbeRecord)


class ProbeFailed(Exception):
    """A probe has no answer; the text says which rank failed and why."""


class SharingFailed(Exception):
    """A launch in which cells take turns did not come to its end; the text says why.

    Which cell is to blame is found out by launching each of them alone.
    """


@dataclass(frozen=True)
class Launched(Generic[R]):
    """What a launch left behind.

    Attributes:
        records: Of the ranks that wrote one, by rank; those that were lost leave none.
        failure: The first thing that went wrong, or None.
        launch_s: From the decision to the last rank's first training step, seconds; None when
            no step was timed.
        wall_s: From the decision to the end of the last rank, seconds.
        node: What the machine's GPUs and processors did meanwhile; None: not watched.
        lost: Ranks without which the others came to their end, and why they are gone.
        noticed_ns: When the launcher heard of the first rank that failed, on the monotonic clock;
            None: none did, or the launcher does not tell.
        stopped_ns: When no rank was left; None: the launcher does not tell.
    """

    records: list[R]
    failure: Failure | None
    launch_s: float | None
    wall_s: float
    node: NodeTrack | None = None
    lost: Sequence[Failure] = ()
    noticed_ns: int | None = None
    stopped_ns: int | None = None


class Launcher(ABC):
    """Starts the ranks of one cell at a time and waits for them.

    Ranks are forked from processes with torch imported. Only the way to these is left open here.

    Attributes:
        shares: Whether it can launch cells that take turns.
        scratch: A folder of this launcher's own.
        world: The world that the ranks are taken from; None: they are made for each launch, or it
            was not surveyed yet.
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
        """Have a process of the worker answer a question; raises EnvironmentUnfit: it cannot."""

    def ask_everywhere(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        """Have a process on every machine answer a question; see `ask`."""
        return [self.ask(request)]

    @abstractmethod
    def parents(self) -> list[int]:
        """Return the processes on this machine that fork ranks, once they are ready."""

    @abstractmethod
    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Launched[R]:
        """Run a job to its end, or to the end of its time.

        Args:
            name: What the worker calls it.
            job: What to run.
            kind: What its ranks leave.
            logs: Folder for one log per rank; made here.

        Returns:
            What it left; ``node`` has the GPUs that the ranks' own parents have watched, if any.
        """

    @abstractmethod
    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Put ranks on virtual hosts from the next launch on.

        Raises:
            EnvironmentUnfit: They cannot be made here.
        """

    def run_shared(self, shared: SharedLaunch, logs: Sequence[Path]) -> list[Launched[RankRecord]]:
        """Run cells that take turns; only where ``shares`` is true."""
        raise NotImplementedError(f"the launcher {self.name} starts one cell at a time")

    def close(self) -> None:
        """End everything that was started; remove the scratch folder."""
        self._scratch.close()

    def _next_launch(self) -> int:
        self.num_launches += 1
        return self.num_launches

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Return what torch says of the machine; with ``rates``, measure its devices too."""
        answer = self.ask({"job": "survey", "rates": rates})
        self.device_uuids = [device["uuid"] for device in answer["devices"]]
        return answer

    def describe(self, target: CustomTarget, device: Device) -> dict[str, Any]:
        """Return what the user's workload is; raises UsageError when it cannot be used."""
        workload = target.model_dump()
        request = {"job": "describe", "workload": workload, "batch_size": 2, "device": device}
        return self._usable(request)

    def schedule(self, name: str, ranks: int, microbatches: int, chunks: int) -> list[list[str]]:
        """Return every rank's passes in torch's order; raises UsageError when torch refuses."""
        sizes = {"ranks": ranks, "microbatches": microbatches, "chunks": chunks}
        return list(self._usable({"job": "schedule", "name": name, **sizes})["ranks"])

    def _usable(self, request: dict[str, Any]) -> dict[str, Any]:
        answer = self.ask(request)
        if "error" in answer:
            raise UsageError(answer["error"]["message"])
        return answer

    def why_not_compiled(self, device: Device) -> str | None:
        """Try ``torch.compile``; return why it does not work and the remedy, or None: it does."""
        answers = self.ask_everywhere({"job": "compile", "device": device})
        told = next((answer["uncompiled"] for answer in answers if answer["uncompiled"]), None)
        return told and f"{told['problem']} ({told['remedy']})"

    def inject(self, what: InjectedFault | None) -> None:
        """Have ranks inject a fault from the next launch on, for the self-test; None: none."""
        self.fault = {} if what is None else {"fault": what.model_dump()}

    def launch(self, cell: Cell, logs: Path) -> Launched[RankRecord]:
        """Run one cell to its end, or to the end of its time, and watch the machine meanwhile."""
        with self.watch(cell.device) as watch:
            done = self.run_job("cell", cell, RankRecord, logs)
        return replace(done, node=joined(watch.track, done.node))

    def launch_shared(
        self, shared: SharedLaunch, logs: Sequence[Path]
    ) -> list[Launched[RankRecord]]:
        """Run cells that take turns to the end of all of them.

        Returns:
            What each cell left behind, without ``launch_s``: its first step waited for its turn.

        Raises:
            SharingFailed: One of them failed.
        """
        with self.watch(shared.device) as watch:
            done = self.run_shared(shared, logs)
        return [replace(one, node=watch.track) for one in done]

    def watch(self, device: Device) -> NodeWatch:
        """Return what watches this machine during a launch."""
        return NodeWatch(device, self.device_uuids, self.parents())

    def probe(self, probe: Sweep | ClockCheck | Rehearsal, logs: Path) -> list[ProbeRecord]:
        """Run a probe; return what its ranks found, by rank.

        Raises:
            ProbeFailed: A rank did not come to its end.
        """
        self.parents()
        done = self.run_job("probe", probe, ProbeRecord, logs)
        if done.failure is not None:
            raise ProbeFailed(f"rank {done.failure.rank}: {done.failure.message}")
        return done.records


def until_first_step(records: Sequence[RankRecord | ProbeRecord], decided_ns: int) -> float | None:
    """Return the seconds to the last rank's first training step; None: no step was timed."""
    known = (record.first_step_ns for record in records if isinstance(record, RankRecord))
    first_steps = [ns for ns in known if ns is not None]
    return (max(first_steps) - decided_ns) / 1e9 if first_steps else None


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
