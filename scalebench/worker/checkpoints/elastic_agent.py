"""torchrun with notes of when its agent notices a failure, and when all ranks are stopped.

Run as a program: the fault's folder, then torchrun's arguments.
"""

import os
import sys
from pathlib import Path
from typing import Any

from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.run import main

from scalebench.records.fault_events import AGENT, FaultFolder
from scalebench.worker.process.setup import die_with_parent


def note_restarts(folder: FaultFolder) -> None:
    """Have the agent note when it begins to restart its workers, and when they are stopped."""
    agent: Any = SimpleElasticAgent
    restart = agent._restart_workers

    def noted(self: Any, worker_group: Any) -> Any:
        folder.note(0, AGENT, "noticed")
        self._stop_workers(worker_group)
        folder.note(0, AGENT, "stopped")
        return restart(self, worker_group)

    agent._restart_workers = noted


if __name__ == "__main__":
    die_with_parent(os.getppid())
    note_restarts(FaultFolder(Path(sys.argv[1])))
    main(sys.argv[2:])
