"""torchrun with notes of when its agent notices a failure, and when all ranks are stopped.

Run as a program: the job's folder, then torchrun's arguments.
"""

import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.run import main

from scalebench.records.measured.recovery import AGENT, FaultFolder
from scalebench.worker.process.setup import die_with_parent


def note_stops(folder: FaultFolder) -> None:
    """Have the agent note when it begins to stop the ranks of an attempt, and when it has.

    It stops them while it still looks after them (`PContext.wait`), before it decides on a restart,
    and once more then. The ranks of the last attempt end by themselves: nothing is noted.
    """
    context: Any = PContext
    close = context.close
    awaited = {plan.attempt for plan in folder.read_plans() if plan.fails}

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        attempt = int(self.envs[0]["TORCHELASTIC_RESTART_COUNT"])
        if attempt not in awaited:
            return close(self, *args, **kwargs)
        awaited.remove(attempt)
        folder.note(attempt, AGENT, "noticed")
        try:
            return close(self, *args, **kwargs)
        finally:
            folder.note(attempt, AGENT, "stopped")

    context.close = noting


if __name__ == "__main__":
    die_with_parent(os.getppid())
    note_stops(FaultFolder(Path(sys.argv[1])))
    main(sys.argv[2:])
