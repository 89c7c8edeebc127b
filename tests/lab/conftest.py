"""Virtual hosts: skipped, with the reason, where this kernel or this user cannot make them.

With SCALEBENCH_LAB_TESTS=required it is a failure that every test here was skipped.
"""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from scalebench.launch.lab import try_lab
from scalebench.launch.local import LocalLauncher
from scalebench.spec import Cell, Ddp, StepPlan
from scalebench.spec.presets import CustomTarget

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def possible():
    found = try_lab()
    reason = found.network or found.quota
    if reason is not None:
        pytest.skip(f"no virtual hosts here: {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail the session when it had tests of this folder, and not one of them was run."""
    there = any(HERE in item.path.parents for item in session.items)
    if not there or os.environ.get("SCALEBENCH_LAB_TESTS") != "required":
        return
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # a worker of pytest-xdist, which has only those tests that it was given
        return
    run = [
        report
        for outcome in ("passed", "failed", "error")
        for report in reporter.stats.get(outcome, [])
        if report.nodeid.startswith("tests/lab/")
    ]
    if not run:
        reporter.write_line("Every test of virtual hosts was skipped, and they are required here.")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def cell(workload, num_ranks, hosts, steps):
    """Return a launch of a workload of `measured` over DDP, on virtual hosts."""
    return Cell(
        suite="lab",
        case="lab",
        strategy=Ddp(),
        workload=CustomTarget(name=f"measured:{workload}", module="measured", function=workload),
        scaling="weak",
        world_size=num_ranks,
        global_batch=num_ranks,
        rank_batch=1,
        device="cpu",
        backend="gloo",
        threads=1,
        virtual_hosts=hosts,
        purpose="measure",
        steps=StepPlan(steps=steps, max_warmup_steps=2, trace=False),
        limit_s=60,
    )


class Measured:
    """Runs the workloads of `measured` in labs of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.launcher = LocalLauncher()

    def __call__(self, workload, num_ranks, hosts, steps, num_bytes=0):
        """Return, for each rank, what it wrote, one row a step."""
        log = self.folder / f"{id(self)}-{self.launcher.num_launches}"
        self.launcher.move_to(hosts, num_ranks)
        place = self.launcher.placement.of
        told = {"MEASURED_LOG": str(log), "MEASURED_BYTES": str(num_bytes)}

        def placed(rank):
            return {**place(rank), "environment": place(rank)["environment"] | told}

        self.launcher.placement.of = placed
        made = cell(workload, num_ranks, hosts, steps)
        launched = self.launcher.launch(made, self.folder / f"logs-{log.name}")
        assert launched.failure is None, launched.failure
        files = [log.with_suffix(f".rank{rank}") for rank in range(num_ranks)]
        return [np.loadtxt(file, ndmin=2) for file in files]


Measure = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="session")
def measurers(possible, tmp_path_factory):
    """Two launchers, side by side."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copy(HERE / "measured.py", folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        pair = (Measured(folder), Measured(folder))
        yield pair
        for one in pair:
            one.launcher.close()


@pytest.fixture
def measure(measurers):
    """Run a workload of `measured`; returns, for each rank, what it wrote, one row a step."""
    return measurers[0]
