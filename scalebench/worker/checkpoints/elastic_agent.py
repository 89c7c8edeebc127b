"""torchrun with notes of when its agent notices a failure, and when all ranks are stopped.

Run as a program: the fault's folder, then torchrun's arguments.
"""

import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing.api import PContext
from torch.distributed.run import main

from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.worker.process.setup import die_with_parent


def note_first_stop(folder: FaultFolder) -> None:
    """Have the agent note when it begins to stop its ranks for the first time, and when it has.

    It stops them while it still looks after them (`PContext.wait`), before it decides on a restart.
    """
    context: Any = PContext
    close = context.close
    noted: list[bool] = []

    def noting(self: Any, *args: Any, **kwargs: Any) -> Any:
        if noted:
            return close(self, *args, **kwargs)
        noted.append(True)
        folder.note(0, AGENT, "noticed")
        try:
            return close(self, *args, **kwargs)
        finally:
            folder.note(0, AGENT, "stopped")

    context.close = noting


if __name__ == "__main__":
    die_with_parent(os.getppid())
    note_first_stop(FaultFolder(Path(sys.argv[1])))
    main(sys.argv[2:])
