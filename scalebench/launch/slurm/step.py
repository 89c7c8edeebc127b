"""One step of an allocation: processes that srun starts for one launch, and ends with it."""

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.external.hub_client import HubClient
from scalebench.launch.slurm.allocation import Allocation
from scalebench.records import Failure
from scalebench.world import Meeting

WORKER = "scalebench.worker.world.follower"
LOOK_AGAIN_S = 0.25
END_LIMIT_S = 10.0
_TASK_ENDED = re.compile(r"^srun: error: (\S+): task (\d+): (.+)$", re.MULTILINE)


class StepEnded(EnvironmentUnfit):
    """srun has ended although the launch has not; `failure` is the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def step_command(allocation: Allocation, num_ranks: int, meeting: Meeting) -> list[str]:
    """Return the command that starts the processes of a launch, one a rank.

    One task that goes wrong ends the step. ``--overlap``: a shell in the allocation is a step as
    well, and must not keep others waiting.
    """
    cpus = allocation.cpus_per_task
    return [
        *("srun", f"--jobid={allocation.job}"),
        *(f"--nodes={allocation.num_nodes(num_ranks)}", f"--ntasks={num_ranks}"),
        *(f"--ntasks-per-node={max(allocation.tasks)}", "--distribution=block:*:*,Pack"),
        *("--kill-on-bad-exit=1", "--overlap", "--input=none"),
        *([] if cpus is None else [f"--cpus-per-task={cpus}"]),
        *(sys.executable, "-m", WORKER, "--step", meeting.model_dump_json()),
    ]


class Step(HubClient):
    """The processes of one launch, and the way to them.

    Args:
        allocation: Where they run.
        num_ranks: How many.
        meeting: Where they meet.
        scratch: An empty folder.

    Raises:
        EnvironmentUnfit: There is no srun.
    """

    def __init__(
        self, allocation: Allocation, num_ranks: int, meeting: Meeting, scratch: Path
    ) -> None:
        if shutil.which("srun") is None:
            raise EnvironmentUnfit("--launcher slurm needs srun, and there is none on the PATH.")
        super().__init__(meeting, None, scratch)
        self.said = scratch / "srun.log"
        # How the shell around this is bound to processors is not meant for the ranks.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_CPU_BIND")}
        with self.said.open("wb") as output:
            self.step = subprocess.Popen(
                step_command(allocation, num_ranks, meeting),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=inherited,
                start_new_session=True,
            )

    def next_message(self, timeout_s: float) -> dict[str, Any] | None:
        """Return the next message; None: the time is over.

        Raises:
            StepEnded: srun has ended, and no message is left.
        """
        deadline = time.monotonic() + max(0.0, timeout_s)
        while True:
            ended = self.step.poll() is not None
            left_s = deadline - time.monotonic()
            message = super().next_message(LOOK_AGAIN_S if ended else min(LOOK_AGAIN_S, left_s))
            if message is not None:
                return message
            if ended:
                raise StepEnded(why_ended(self.said.read_text(errors="replace"), self.step))
            if time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """End the step."""
        try:
            self.step.wait(timeout=END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self.step.terminate()  # srun then ends its tasks
            try:
                self.step.wait(timeout=END_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.step.kill()
                self.step.wait()
        finally:
            super().close()


def why_ended(said: str, step: "subprocess.Popen[bytes]") -> Failure:
    """Return why a step has ended, from what srun printed: the first task that went wrong."""
    tail = "\n".join(said.splitlines()[-15:])
    match = _TASK_ENDED.search(said)
    if match is None:
        lines: Sequence[str] = said.strip().splitlines() or [f"exit code {step.returncode}"]
        return Failure(rank=None, kind="exit", message=f"srun: {lines[-1]}", log_tail=tail)
    host, task, how = match.groups()
    kind = "exit" if how.startswith("Exited") else "signal"
    message = f"srun says of it on {host}: {how}"
    return Failure(rank=int(task), kind=kind, message=message, log_tail=tail)
