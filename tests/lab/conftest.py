"""Virtual hosts: skipped, with the reason, where this kernel or this user cannot make them."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from scalebench.catalog import CustomTarget
from scalebench.launch.lab import try_lab
from scalebench.launch.local import LocalLauncher
from scalebench.spec import Cell, Ddp, StepPlan
from scalebench.virtual_hosts import VirtualHosts

Measure = Callable[..., list[np.ndarray]]


@pytest.fixture(scope="session", autouse=True)
def possible() -> None:
    """Skip everything here where there can be no lab."""
    found = try_lab()
    reason = found.network or found.quota
    if reason is not None:
        pytest.skip(f"no virtual hosts here: {reason}")


def cell(workload: str, num_ranks: int, hosts: VirtualHosts, steps: int) -> Cell:
    """Return a launch of a workload of `measured` over DDP, on virtual hosts."""
    return Cell(
        suite="lab",
        case="lab",
        strategy=Ddp(),
        workload=CustomTarget(
            name=f"measured:{workload}", module="measured", function=workload
        ),
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


@pytest.fixture(scope="session")
def measure(possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measure]:
    """Run a workload of `measured`; returns, for each rank, what it wrote, one row a step."""
    folder = tmp_path_factory.mktemp("measured")
    shutil.copy(Path(__file__).with_name("measured.py"), folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with LocalLauncher() as launcher:

            def run(
                workload: str, num_ranks: int, hosts: VirtualHosts, steps: int, num_bytes: int = 0
            ) -> list[np.ndarray]:
                log = folder / f"log{launcher.num_launches}"
                launcher.move_to(hosts, num_ranks)
                of = launcher.placement.of
                told = {"MEASURED_LOG": str(log), "MEASURED_BYTES": str(num_bytes)}
                launcher.placement.of = lambda rank: {
                    **of(rank),
                    "environment": of(rank)["environment"] | told,
                }
                launched = launcher.launch(cell(workload, num_ranks, hosts, steps), folder / "logs")
                assert launched.failure is None, launched.failure
                files = [log.with_suffix(f".rank{rank}") for rank in range(num_ranks)]
                return [np.loadtxt(file, ndmin=2) for file in files]

            yield run
