"""A job that Slurm runs, and starts again when a rank has failed: ``scontrol requeue``.

Its ranks run on this machine, so that all times come from one clock: it has to be a node.
"""

import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from scalebench.errors import EnvironmentUnfit
from scalebench.launch.local import loopback_environment
from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.session.recovery.timeline import NoTimeline
from scalebench.spec import Cell

PROGRAMS = ("sbatch", "srun", "scontrol", "squeue", "scancel", "sinfo")
PATIENCE_S = 600.0
"""For both attempts of a job, the 120 s that Slurm waits between them, and the queue."""
REVOKED_S = 2.0
"""So long after it was requeued a job must not start: a node rejects it in the very second in which
it ended the first attempt ("Job credential revoked"), and Slurm then gives it up."""
GONE_S = 60.0
"""So long a job that is being requeued may be missing from the queue."""
POLL_S = 0.5
CALL_LIMIT_S = 60.0
ADVICE = (
    "Run scalebench on a node of the cluster, or leave slurm out of Recovery(restarted_by=...)."
)


def check_requeue(cells: Iterable[Cell]) -> None:
    """Check that Slurm can start jobs on this machine, if a suite wants that.

    Raises:
        EnvironmentUnfit: It cannot.
    """
    for cell in cells:
        if cell.purpose == "fail" and cell.recovery and "slurm" in cell.recovery.restarted_by:
            own_node()
            return


def own_node() -> str:
    """Return Slurm's name of this machine; where it is several nodes, the first one.

    Raises:
        EnvironmentUnfit: Slurm is not here, does not answer, or this machine is no node.
    """
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing:
        raise EnvironmentUnfit(f"Slurm cannot restart jobs: no {missing[0]} on the PATH. {ADVICE}")
    told = _call("sinfo", "--noheader", "--Node", "--format=%N %n")
    if told.returncode:
        why = told.stderr.strip().partition("\n")[0] or "no reason given"
        raise EnvironmentUnfit(f"Slurm cannot restart jobs: sinfo says {why!r}. {ADVICE}")
    node = node_of(told.stdout, socket.gethostname())
    if node is None:
        raise EnvironmentUnfit(
            f"Slurm cannot restart jobs here: {socket.gethostname()} is no node of its. {ADVICE}"
        )
    return node


def node_of(table: str, host: str) -> str | None:
    """Return the first node with a host's name, from lines of node and host name; None: none."""
    short = host.partition(".")[0]
    pairs = (line.split() for line in table.splitlines())
    return next((pair[0] for pair in pairs if pair[1].partition(".")[0] == short), None)


def batch_script(
    cell: Cell, folder: FaultFolder, python: str, environment: Mapping[str, str]
) -> str:
    """Return the script of a job that has itself started again once if a rank fails."""
    srun = ["srun", "--kill-on-bad-exit=1", f"--ntasks={cell.world_size}", "--input=none"]
    rank = [python, "-m", "scalebench.worker.checkpoints.slurm_rank", str(folder.root)]
    step = [python, "-m", "scalebench.worker.checkpoints.slurm_step", str(folder.root)]
    lines = [
        "#!/bin/bash",
        *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
        f"{shlex.join([*step, *srun, *rank])} && exit 0",
        '[ "${SLURM_RESTART_COUNT:-0}" -eq 0 ] || exit 1  # once is enough',
        'scontrol requeue "$SLURM_JOB_ID"',
    ]
    return "\n".join(lines) + "\n"


def submit_command(cell: Cell, node: str, script: Path, output: Path) -> list[str]:
    """Return what hands the script to Slurm, for this machine alone."""
    return [
        *("sbatch", "--parsable", "--requeue", "--open-mode=append", "--job-name=scalebench"),
        *(f"--nodelist={node}", "--nodes=1", f"--ntasks={cell.world_size}"),
        f"--cpus-per-task={cell.threads}",
        *([f"--gpus-per-node={cell.world_size}"] if cell.device == "cuda" else []),
        f"--output={str(output).replace('%', '%%')}",
        str(script),
    ]


def run_requeued(cell: Cell, folder: FaultFolder, logs: Path, at_once: bool) -> Path:
    """Have Slurm run a job in which a rank fails; return what it printed when it has ended.

    Args:
        cell: Of the job.
        folder: With the plan of the fault and the cell.
        logs: For the script and what it prints.
        at_once: Whether Slurm is told to start a requeued job now, instead of in 120 s.

    Raises:
        NoTimeline: Slurm refuses the job, or it does not end in time.
        EnvironmentUnfit: There is no Slurm here.
    """
    script, output = logs / "requeue.sh", logs.resolve() / "slurm.log"
    environment = {
        **loopback_environment(),
        "OMP_NUM_THREADS": str(cell.threads),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(_free_port()),
    }
    script.write_text(batch_script(cell, folder, sys.executable, environment))
    told = _call(*submit_command(cell, own_node(), script, output))
    if told.returncode:
        raise NoTimeline(f"sbatch rejected {script}: {told.stderr.strip() or 'no reason given'}")
    job = told.stdout.strip().partition(";")[0]
    try:
        _wait_for_end(job, folder, at_once)
    finally:
        _call("scancel", "--quiet", job)  # of a job that has ended it does nothing
    return output


def _wait_for_end(job: str, folder: FaultFolder, at_once: bool) -> None:
    """Return when a job is no longer in the queue; ask for its second start if that is wanted.

    On its way from the failed attempt to the queue Slurm may show a job in neither.
    """
    end, seen = time.monotonic() + PATIENCE_S, time.monotonic()
    requeued: float | None = None
    while True:
        queued, now = _queued(job), time.monotonic()
        fails = "stopped" in {event.name for event in folder.events(0, AGENT)}
        pending = fails and queued.startswith("PENDING")
        requeued = (now if requeued is None else requeued) if pending else None
        if queued:
            seen = now
        elif not fails or folder.events(1, 0) or now - seen > GONE_S:
            return
        if now > end:
            raise NoTimeline(
                f"job {job} did not end within {PATIENCE_S:g} s: Slurm has it {queued or 'not'}"
            )
        if at_once and requeued is not None and now - requeued >= REVOKED_S:
            at_once = _call("scontrol", "update", f"jobid={job}", "StartTime=now").returncode != 0
        time.sleep(POLL_S)


def _queued(job: str) -> str:
    """Return the state of a job in the queue, and why it waits; empty: it has ended."""
    told = _call("squeue", "--noheader", f"--jobs={job}", "--format=%T (%r)")
    if told.returncode and "Invalid job id" not in told.stderr:
        return f"UNKNOWN ({told.stderr.strip()})"  # Slurm is busy: ask again
    return told.stdout.strip()


def _call(*command: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=CALL_LIMIT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(f"{command[0]} did not answer within {CALL_LIMIT_S:g} s.") from None


def _free_port() -> int:
    """Return a port on which no program listens now."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
