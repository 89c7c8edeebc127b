"""The hooks see a step where the user would say one step."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

STEPS, NUM_WAYS = 3, 17


def test_steps_are_counted_whatever_the_optimizer():
    program = [sys.executable, "-m", "tests.unit.worker.attach.hooked"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    counted = {name: seen.pop(name) for name in list(seen) if name.startswith("steps of ")}
    assert counted == dict.fromkeys(counted, STEPS) and len(counted) == NUM_WAYS
    assert seen.pop("samples") == STEPS * 4
    assert seen == dict.fromkeys(seen, 1) and len(seen) == 13
