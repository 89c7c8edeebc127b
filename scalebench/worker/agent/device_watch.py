"""The GPU of a rank, watched while the rank trains by a process that the rank's parent starts.

The parent itself has no threads and has never touched a driver, and stays so: it forks the ranks.
"""

import json
import subprocess
import sys
from collections.abc import Sequence

WATCHER = "scalebench.launch.monitor.watcher"
ANSWER_LIMIT_S = 5.0


class DeviceWatch:
    """Watches GPUs from now on until `stop`.

    Args:
        uuids: Of the GPUs.
        family: Processes that are of the launch, with all that descend from them.
    """

    def __init__(self, uuids: Sequence[str], family: Sequence[int]) -> None:
        own = [sys.executable, *(["-P"] if sys.flags.safe_path else [])]
        self.process = subprocess.Popen(
            [*own, "-m", WATCHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"uuids": uuids, "family": family}) + "\n")
        self.process.stdin.flush()

    def stop(self) -> str | None:
        """Return what was seen, a `NodeTrack` as JSON; None: the process does not tell."""
        try:
            return self.process.communicate("end\n", timeout=ANSWER_LIMIT_S)[0] or None
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            return None
