"""Virtual hosts: skipped, with the reason, where this kernel or this user cannot make them.

With SCALEBENCH_LAB_TESTS=required it is a failure that they cannot be made.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from scalebench.launch.lab import try_lab
from scalebench.launch.local import LocalLauncher
from scalebench.spec import StepPlan
from scalebench.spec.presets import CustomTarget
from tests.builders.runs import make_cell

HERE = Path(__file__).parent


@pytest.fixture(scope="session", autouse=True)
def possible():
    found = try_lab()
    reason = found.network or found.quota
    if reason is not None:
        required = os.environ.get("SCALEBENCH_LAB_TESTS") == "required"
        (pytest.fail if required else pytest.skip)(f"no virtual hosts here: {reason}")


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
        cell = make_cell(
            world_size=num_ranks,
            workload=CustomTarget(
                name=f"measured:{workload}", module="measured", function=workload
            ),
            virtual_hosts=hosts,
            steps=StepPlan(steps=steps, max_warmup_steps=2, trace=False),
            **{"scaling": "weak", "global_batch": num_ranks, "rank_batch": 1, "limit_s": 60},
        )
        launched = self.launcher.launch(cell, self.folder / f"logs-{log.name}")
        assert launched.failure is None, launched.failure
        files = [log.with_suffix(f".rank{rank}") for rank in range(num_ranks)]
        return [np.loadtxt(file, ndmin=2) for file in files]


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
