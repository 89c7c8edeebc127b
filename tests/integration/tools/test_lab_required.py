"""Where tests of virtual hosts are required, it is a failure that all of them were skipped."""

import os
import sys
from pathlib import Path

import pytest

from tests.conftest import ran

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(("required", "code"), [("required", 1), ("", 0)])
def test_all_skipped(tmp_path, required, code):
    without_ip = {**os.environ, "PATH": str(tmp_path), "SCALEBENCH_LAB_TESTS": required}
    done = ran(
        [sys.executable, "-m", "pytest", "tests/lab", "-q", "-k", "in_use or at_once"],
        cwd=ROOT,
        env=without_ip,
    )
    assert done.returncode == code, done.stdout
    assert "no virtual hosts here: no program 'ip': install iproute2" in done.stdout
    assert ("skipped, and they are required here" in done.stdout) is bool(required)
