"""What the tests of killed runs rest on."""

import subprocess
import sys

import psutil

from tests.processes import left_after


def test_a_process_that_goes_on_is_named_and_a_zombie_has_ended() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        process = psutil.Process(child.pid)
        (left,) = left_after([process], limit_s=0.1)
        assert str(child.pid) in left
        child.kill()
        assert left_after([process]) == []  # not collected yet
        assert process.status() == psutil.STATUS_ZOMBIE
