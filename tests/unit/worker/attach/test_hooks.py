"""The hooks see a step where the user would say one step."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

STEPS = 3
WAYS = {
    *("plain", "fused", "accumulated", "closure", "by_grad", "zero", "in_backward", "compiled"),
    *("several_after_one_backward", "scaled_with_one_skipped", "with_workers"),
    *("in_backward_with_checkpoints", "outer_in_post_hook"),
    *("compiled_around", "compiled_whole", "compiled_step", "played_graph", "played_pass"),
}


def test_steps_are_counted_whatever_the_optimizer():
    program = [sys.executable, "-m", "tests.unit.worker.attach.hooked"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen.pop("spawn refused") == 1
    told = ("evaluated", "saved", "loaded", "saved by dcp", "saved asynchronously", "nothing")
    for name in (*told, "nothing in the background"):
        assert seen.pop(name) == 1, name
    assert seen.pop("samples") == STEPS * 4
    assert seen == dict.fromkeys(WAYS, STEPS)
