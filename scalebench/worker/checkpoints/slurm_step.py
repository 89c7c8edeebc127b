"""srun with notes of when it hears of a failure, and when all ranks are stopped.

Run as a program in a batch script: the fault's folder, then srun's command. It ends as srun does.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from scalebench.records.fault_events import AGENT, FaultFolder

_TASK_ENDED = re.compile(rb"srun: error: \S+: tasks? \d")
"""How srun begins to say that a task went wrong: ``srun: error: n1: task 1: Killed``."""


def run_step(folder: FaultFolder, command: Sequence[str]) -> int:
    """Run srun and repeat what it prints; note the first failure, and the end of all ranks.

    Returns:
        Its exit code; 0: no rank has failed, and nothing is noted.
    """
    heard = False
    with subprocess.Popen(command, stderr=subprocess.PIPE) as step:
        assert step.stderr is not None
        for line in step.stderr:
            if not heard and _TASK_ENDED.match(line):
                heard = True
                folder.note(0, AGENT, "noticed")
            sys.stderr.buffer.write(line)
            sys.stderr.buffer.flush()
    if step.returncode:
        folder.note(0, AGENT, "stopped")
    return step.returncode


if __name__ == "__main__":
    sys.exit(run_step(FaultFolder(Path(sys.argv[1])), sys.argv[2:]))
