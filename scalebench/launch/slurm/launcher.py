"""Launches as steps of a Slurm allocation: srun starts the ranks of each, and ends them."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launched
from scalebench.launch.external.nodes import rank_devices, world_of
from scalebench.launch.external.relay_client import RelayClient
from scalebench.launch.external.worker_group import WorkerGroup
from scalebench.launch.forking import ForkingLauncher, launched_of
from scalebench.launch.interpreter import interpreter
from scalebench.launch.monitor.node import NOT_TOLD, ON_CPU
from scalebench.launch.ranks import Ended, R
from scalebench.launch.slurm.allocation import Allocation, find_allocation
from scalebench.records.rank import RankRecord
from scalebench.records.run import Failure
from scalebench.records.secret import VARIABLE, new_secret
from scalebench.records.telemetry import NodeTrack
from scalebench.spec import Cell, Job
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.world import Rendezvous

WORKER = "scalebench.worker.agent.agent"
LOOK_AGAIN_S = 0.25
END_LIMIT_S = 10.0
_TASK_ENDED = re.compile(r"^srun: error: (\S+): task (\d+): (.+)$", re.MULTILINE)


class StepEnded(EnvironmentUnfit):
    """srun has ended although the launch has not; `failure` is the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def step_command(
    allocation: Allocation, num_ranks: int, rendezvous: Rendezvous, first: int
) -> list[str]:
    """Return the command that starts the processes of a launch, one a rank.

    One task that goes wrong ends the step. ``--overlap``: a shell in the allocation is a step as
    well, and must not keep others waiting.

    Args:
        allocation: Where they run.
        num_ranks: How many.
        rendezvous: Where they meet.
        first: Number of the first of them.
    """
    cpus = allocation.cpus_per_task
    return [
        *("srun", f"--jobid={allocation.job}"),
        *(f"--nodes={allocation.num_nodes(num_ranks)}", f"--ntasks={num_ranks}"),
        *(f"--ntasks-per-node={max(allocation.tasks)}", "--distribution=block:*:*,Pack"),
        *("--kill-on-bad-exit=1", "--overlap", "--input=none"),
        *([] if cpus is None else [f"--cpus-per-task={cpus}"]),
        *(*interpreter(), "-m", WORKER, "--step", rendezvous.model_dump_json(), str(first)),
    ]


class Step:
    """The processes of one launch, as srun has them.

    Args:
        command: What starts them.
        said: File for what srun prints.
        secret: Of the session; in the environment, for everybody can read a command line.

    Raises:
        EnvironmentUnfit: There is no srun.
    """

    def __init__(self, command: Sequence[str], said: Path, secret: str) -> None:
        if shutil.which(command[0]) is None:
            raise EnvironmentUnfit("--launcher slurm needs srun, and there is none on the PATH.")
        self.said = said
        # How the shell around this is bound to processors is not meant for the ranks.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_CPU_BIND")}
        inherited[VARIABLE] = secret
        exported = inherited.get("SLURM_EXPORT_ENV", "ALL")  # what the job's --export said
        inherited["SLURM_EXPORT_ENV"] = (
            VARIABLE if exported in ("NONE", "NIL") else f"{exported},{VARIABLE}"
        )
        with said.open("wb") as output:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited,
                start_new_session=True,
            )

    @property
    def has_ended(self) -> bool:
        """Whether srun has left."""
        return self.process.poll() is not None

    def why_ended(self) -> Failure:
        """Return why, for a step that has ended before its launch."""
        return why_ended(self.said.read_text(errors="replace"), self.process.returncode)

    def close(self) -> None:
        """Wait for the end of the step; end it."""
        try:
            self.process.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.process.terminate()  # srun then ends its tasks
            try:
                self.process.wait(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class StepsRelay(RelayClient):
    """The way to the processes of one step after another; notices when a step ends by itself.

    Attributes:
        step: The one that is under way.
    """

    step: Step | None = None

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None: the time is over.

        Raises:
            StepEnded: srun has ended, and no message is left.
        """
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            ended = self.step is not None and self.step.has_ended
            left_s = deadline - time.monotonic()
            message = super().next_message(LOOK_AGAIN_S if ended else min(LOOK_AGAIN_S, left_s))
            if message is not None:
                return message
            if ended and self.step is not None:
                raise StepEnded(self.step.why_ended())
            if time.monotonic() >= deadline:
                return None


def why_ended(said: str, code: int) -> Failure:
    """Return why a step has ended, from what srun printed: the first task that went wrong."""
    tail = "\n".join(said.splitlines()[-15:])
    match = _TASK_ENDED.search(said)
    if match is None:
        lines: Sequence[str] = said.strip().splitlines() or [f"exit code {code}"]
        return Failure(rank=None, kind="exit", message=f"srun: {lines[-1]}", log_tail=tail)
    host, task, how = match.groups()
    kind = "exit" if how.startswith("Exited") else "signal"
    message = f"srun reports on {host}: {how}"
    return Failure(rank=int(task), kind=kind, message=message, log_tail=tail)


UNWATCHED = "the ranks ran as a Slurm step, whose processes end with the launch"


class SlurmLauncher(ForkingLauncher):
    """One step per launch, one task per rank; nodes are filled one after the other.

    Raises:
        EnvironmentUnfit: This process is in no allocation.
    """

    def __init__(self) -> None:
        self.allocation: Allocation = find_allocation(os.environ)
        super().__init__()
        self.rendezvous = Rendezvous(
            host="127.0.0.1",  # between machines, tasks are told by Slurm where srun was called
            port=self.allocation.port,
            one_node=self.allocation.one_node,
        )
        self.secret = new_secret()
        self.relay = StepsRelay(self.rendezvous, None, self.scratch, self.secret)
        self.num_processes = 0
        self.rank_devices: dict[tuple[str, int], str] = {}
        self.asking = ExitStack()
        self.asked: WorkerGroup | None = None

    def close(self) -> None:
        """End the step that is under way, and everything else."""
        try:
            self.asking.close()
        finally:
            self.relay.close()
            super().close()

    def move_to(self, hosts: VirtualHosts, num_ranks: int) -> None:
        """Refuse: ranks are where Slurm puts them."""
        raise EnvironmentUnfit("Slurm places the ranks; they cannot be put on virtual hosts.")

    @contextmanager
    def _step(self, num_ranks: int) -> Iterator[WorkerGroup]:
        """Start a step for the duration of the block; yield its processes, once they have met."""
        first = self.num_processes
        self.num_processes += num_ranks
        command = step_command(self.allocation, num_ranks, self.rendezvous, first)
        step = self.relay.step = Step(command, self.scratch / f"srun{first}.log", self.secret)
        group = WorkerGroup(self.relay, "srun", range(first, first + num_ranks))
        try:
            group.connect()
            yield group
        finally:
            group.disconnect()
            self.relay.step = None
            step.close()

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Have the first task answer a question.

        The step is kept for further questions, until something is launched.
        """
        group = self._kept_step()
        return group.ask(self._next_launch(), group.everyone[:1], request)[group.everyone[0]]

    def _kept_step(self) -> WorkerGroup:
        """Return the processes of a step of the whole allocation, for questions."""
        if self.asked is None:
            self.asked = self.asking.enter_context(self._step(self.allocation.num_tasks))
        return self.asked

    def survey(self, rates: bool = False) -> dict[str, Any]:
        """Have every task of the allocation say what is there; return what the first one says."""
        group = self._kept_step()
        request = {"job": "survey", "rates": rates}
        answers = group.ask(self._next_launch(), group.everyone, request)
        self.world = world_of("slurm", group.registrations, answers)
        self.rank_devices = rank_devices(self.world, answers)
        return answers[group.everyone[0]]

    def parents(self) -> list[int]:
        """Return nothing: the processes that fork ranks are new in every step."""
        return []

    def launch(self, cell: Cell, logs: Path) -> Launched:
        """Run one cell as a step; its tasks watch their GPUs; the processors are not watched."""
        ended = self.run_job("cell", cell, RankRecord, logs)
        no_device = ON_CPU if cell.device == "cpu" else NOT_TOLD
        track = NodeTrack(unavailable={"devices": no_device, "host": UNWATCHED})
        return launched_of(ended, track)

    def run_job(self, name: str, job: Job, kind: type[R], logs: Path) -> Ended[R]:
        """Run a job as a step, to its end or to the end of its time."""
        self.asking.close()
        self.asked = None
        decided_ns = time.monotonic_ns()
        try:
            with self._step(job.world_size) as group:
                world = world_of("slurm", group.registrations)
                request = {"job": name, **self.fault}
                number, devices = self._next_launch(), self.rank_devices
                ended = group.run_job(number, world.order, request, job, kind, logs, world, devices)
                return replace(ended, decided_ns=decided_ns)
        except StepEnded as step:
            wall_s = (time.monotonic_ns() - decided_ns) / 1e9
            return Ended([], step.failure, decided_ns, wall_s)
