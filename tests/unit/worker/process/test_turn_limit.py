"""A rank that hangs in its turn ends itself: the other launches wait for it."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import time
from scalebench.worker.process.context import JobContext, TakingTurns

context = JobContext(None, 0, 0, None, taking_turns=TakingTurns(None, limit_s={limit_s}))
with context.turn():
    time.sleep({inside_s})
time.sleep({afterwards_s})
print("came to its end")
"""


def a_turn(**seconds: float) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(**seconds)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=600
    )


def test_a_rank_that_hangs_in_its_turn_leaves_its_stacks_and_ends() -> None:
    done = a_turn(limit_s=0.2, inside_s=500, afterwards_s=0)
    assert done.returncode == 1
    assert "Timeout" in done.stderr and 'File "<string>"' in done.stderr
