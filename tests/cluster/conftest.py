"""Launchers of clusters: skipped, with the reason, where one is not installed.

With SCALEBENCH_CLUSTER_TESTS=required it is a failure that it is missing.
"""

import os
import shutil
from pathlib import Path

import pytest

TROUBLED = Path(__file__).parents[1] / "integration" / "troubled.py"


def need(programs: tuple[str, ...], package: str) -> None:
    """Skip the test, or fail it where clusters are required, unless all programs are there."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin"
    missing = [program for program in programs if shutil.which(program, path=path) is None]
    if not missing:
        return
    reason = f"no {missing[0]} here: install {package}"
    if os.environ.get("SCALEBENCH_CLUSTER_TESTS") == "required":
        pytest.fail(reason)
    pytest.skip(reason)


@pytest.fixture
def troubled(project: Path) -> None:
    """Put the troubled workloads where ``--workload troubled:NAME`` finds them."""
    shutil.copy(TROUBLED, project)
