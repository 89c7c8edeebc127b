"""Foreign load on a real machine; it has to have the machine to itself."""

import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from scalebench.launch.monitor.node import HostWatch
from scalebench.records.telemetry import HostLoad

pytestmark = pytest.mark.timed


needs_proc = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
SECONDS = 2.0


def spinning() -> list[str]:
    """The command of a process that keeps a processor busy."""
    program = f"import time; end = time.time() + {SECONDS}\nwhile time.time() < end: pass"
    return [sys.executable, "-c", program]


def load_beside(command: Sequence[str]) -> HostLoad:
    """Return the load while a command that is not the job's runs, or as long without one."""
    begun = HostWatch([])
    if command:
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    else:
        time.sleep(SECONDS)
    return begun.stop()


@needs_proc
def test_a_busy_stranger_is_foreign_load():
    """A real process that spins for two seconds beside the job.

    The readings without it say how busy the machine is anyway: what it adds has to be ten times
    that, else nothing can be said here.
    """
    loads = [load_beside(command) for command in ((), spinning(), ())]
    before, stranger, after = (load.foreign_cores for load in loads)
    figures = f"foreign processors before {before:.3f}, beside {stranger:.3f}, after {after:.3f}"
    if 10 * max(before, after) > stranger:
        pytest.skip(f"inconclusive, others use this machine: {figures}")
    assert stranger == pytest.approx(SECONDS / loads[1].wall_s, abs=0.15), figures
