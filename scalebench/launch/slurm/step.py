"""One step of an allocation: processes that srun starts for one launch, and ends with it."""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.relay_client import RelayClient
from scalebench.launch.interpreter import interpreter
from scalebench.launch.slurm.allocation import Allocation
from scalebench.records.run import Failure
from scalebench.records.secret import VARIABLE
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
