"""Launchers of clusters: skipped, with the reason, where one is not installed.

With SCALEBENCH_CLUSTER_TESTS=required it is a failure that it is missing.
"""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.integration.conftest import row_of, troubled

__all__ = ["troubled"]

TROUBLED = Path(__file__).parents[1] / "integration" / "troubled.py"


def need(programs, package):
    """Skip the test, or fail it where clusters are required, unless all programs are there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if not missing:
        return
    reason = f"no {missing[0]} here: install {package}"
    if os.environ.get("SCALEBENCH_CLUSTER_TESTS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


SCRIPT_RUN = ("run", "--gpus", "2", "--quick", "--no-report", "--out", "r")
"""A user's script: its words follow `SCRIPT_WORDS`."""

SCRIPT_WORDS = ("--", "placed.py", "{run_dir}")


@pytest.fixture
def placed(project):
    shutil.copy(TROUBLED.parent / "scripts" / "placed.py", project)


def check_script_run(project, place):
    """Check the run of the script on two ranks: measured, explained, and told its place.

    Args:
        project: Where it ran.
        place: For each rank what torchrun's variables must say of its machine.
    """
    row = row_of(project / "r", "script", 2)
    assert row["status"] == "ok" and row["budget"] is not None, row
    for rank in range(2):
        log = (project / "r/logs/placed.script.n2.r0" / f"rank{rank}.log").read_text()
        told = {line.split()[0]: json.loads(line.partition(" ")[2]) for line in log.splitlines()
                if line.startswith(("PLACE", "OTHERS", "RUN_DIR"))}  # fmt: skip
        assert told == {"PLACE": place[rank], "OTHERS": [], "RUN_DIR": True}
