"""A process that watches a rank's GPU while the rank trains, forked by the one that forks the rank.

That one has no threads and has never touched a driver, and stays so.
"""

import os
import signal
import socket
from collections.abc import Sequence

from scalebench.launch.monitor.sampler import STOP_LIMIT_S, DeviceSampler
from scalebench.worker.process.setup import die_with_parent


class DeviceWatch:
    """Samples GPUs from now on until `stop`.

    Args:
        uuids: Of the GPUs.
        family: Processes that are of the launch, with all that descend from them.
    """

    def __init__(self, uuids: Sequence[str], family: Sequence[int]) -> None:
        parent = os.getpid()
        self.line, told = socket.socketpair()
        if os.fork():
            told.close()
            return
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the end of the rank is the end
            die_with_parent(parent)
            self.line.close()
            _sample(DeviceSampler(uuids, family=family), told)
        finally:
            os._exit(0)

    def stop(self) -> str | None:
        """Return what was seen, a `NodeTrack` as JSON; None: the process does not answer."""
        self.line.settimeout(2 * STOP_LIMIT_S)
        try:
            self.line.shutdown(socket.SHUT_WR)
            with self.line.makefile("rb") as lines:
                return lines.read().decode() or None
        except OSError:
            return None
        finally:
            self.line.close()


def _sample(sampler: DeviceSampler, line: socket.socket) -> None:
    """Sample until the other end of the line has no more to say; then tell what was seen."""
    sampler.start()
    line.recv(1)
    line.sendall(sampler.result().model_dump_json().encode())
