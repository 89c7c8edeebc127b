import os
import time
from pathlib import Path

import psutil
import pytest

from scalebench.launch.lab.lab import processors_of_ranks
from scalebench.launch.lab.wakeups import Wakeups

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="there is no /proc here"
)


def switches(pid: int) -> int:
    """Return how often a process went to sleep by itself."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("voluntary"))


def wait_for(condition) -> None:
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_processors_are_woken_for_as_long_as_the_quotas_hold():
    processor = min(os.sched_getaffinity(0))
    wakeups = Wakeups([processor])
    holder = psutil.Process(wakeups.process.pid)
    wait_for(holder.children)
    [child] = holder.children()
    wait_for(lambda: child.cpu_affinity() == [processor])
    before = switches(child.pid)
    wait_for(lambda: switches(child.pid) > before + 20)
    wakeups.close()
    wait_for(lambda: not psutil.pid_exists(child.pid))


def test_only_processors_of_ranks_are_woken():
    allowed = os.sched_getaffinity(0)
    assert len(processors_of_ranks(1, 1)) == 1
    assert processors_of_ranks(2 * len(allowed), 1) == allowed
