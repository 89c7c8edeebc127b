"""A batch script for Slurm."""

import re
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.submission.request import JobRequest
from scalebench.records.storage.secret import VARIABLE

SUBMIT_LIMIT_S = 60
CPUS = "cpus-per-task"
_VALUE = re.compile(r"[A-Za-z0-9_.,:@+*=&|%\[\]/-]+")
"""What options of sbatch hold; no blank, quote or anything else that a shell would act on."""


def batch_script(request: JobRequest, options: Mapping[str, str], python: str) -> str:
    """Return the script of a job in which srun starts one process of scalebench for each rank.

    ``options`` of sbatch have no dashes; ``python`` is the interpreter, as the nodes find it.

    Raises:
        UsageError: An option's value is none.
    """
    settings = {
        "job-name": request.name,
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.ranks_per_node),
        **({"gpus-per-node": str(request.gpus_per_node)} if request.gpus_per_node else {}),
        "output": f"{request.name}-%j.out",
        **options,
    }
    for name, value in settings.items():
        if not _VALUE.fullmatch(value):
            raise UsageError(f"--{name} {value!r}: sbatch takes letters, digits and _.,:@+=/-.")
    own, script = request.split()
    # Unlike sbatch's other options, srun does not take the processors of a task from the job.
    cpus = [f"--cpus-per-task={options[CPUS]}"] if CPUS in options else []
    srun = ["srun", "--export=ALL", "--input=none", "--kill-on-bad-exit=1", *cpus]
    command = [*srun, python, "-m", "scalebench", *own, *script]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in settings.items()),
        "set -eu",
        "# What the ranks sign their messages with.",
        f"export {VARIABLE}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        "# Each task forks a fresh rank for every launch: a rank that dies fails only its row.",
        shlex.join(command),
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, path: Path) -> str:
    """Write a batch script and hand it to sbatch; return what that says, the job's number.

    Raises:
        UsageError: There is a file of that name already.
        EnvironmentUnfit: sbatch is missing, or refuses.
    """
    try:
        path.touch(mode=0o600, exist_ok=False)  # the words of a script may hold a secret
        path.write_text(script, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{path} already exists. Give the job another --name.") from None
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(path)],
            capture_output=True,
            text=True,
            timeout=SUBMIT_LIMIT_S,
        )
    except FileNotFoundError:
        raise EnvironmentUnfit(
            f"There is no sbatch on the PATH. {path} is written: submit it on a machine that has "
            "sbatch."
        ) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(f"sbatch did not answer within {SUBMIT_LIMIT_S} s.") from None
    if done.returncode != 0:
        raise EnvironmentUnfit(
            f"sbatch rejected {path}: {done.stderr.strip() or 'no reason given'}"
        )
    return done.stdout.strip()
