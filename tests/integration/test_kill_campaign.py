"""A small sample of ``make faults``: processes of a run killed at random moments."""

import subprocess
import sys
from pathlib import Path

from tests.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]


def test_a_few_random_kills_lose_nothing() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.faults", "--kills", "4", "--seed", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 injected, 4 survived, 0 results lost" in done.stdout
