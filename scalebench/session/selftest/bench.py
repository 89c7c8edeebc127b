"""The bench on which the instrument is put: launches, with known faults injected."""

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from scalebench.analysis.attribution import LaunchAttribution, attribute, why_not
from scalebench.launch.base import Launcher
from scalebench.records.certificate import Form
from scalebench.records.folder import Scratch
from scalebench.records.measured.probes import ProbeRecord
from scalebench.records.run import CellResult, launched_result
from scalebench.spec import Cell, Ddp, Plain, StepPlan, Strategy
from scalebench.spec.presets import CustomTarget, WorkloadSpec
from scalebench.spec.probes import ClockCheck, FaultKind, InjectedFault, Sweep
from scalebench.spec.world import VirtualHosts

WORKLOADS = "scalebench.worker.workloads.loaded"
BUCKET_MB = 0.05
"""Below a stage's gradients, so that every stage is a separate bucket."""

LIMIT_S = 120.0


class Unusable(Exception):
    """A launch of the self-test left nothing to judge; the text says why."""


@dataclass(frozen=True)
class Effort:
    """How long a launch of the self-test measures.

    Attributes:
        window_s: Of the clean window.
        rounds_s: Of the rounds in which steps are traced.
        repeats: Timings of each operation.
    """

    window_s: float
    rounds_s: float
    repeats: int


MAX_ROUNDS = 100
"""Time is what limits them."""

EFFORT: dict[Form, Effort] = {
    "quick": Effort(window_s=0.6, rounds_s=3.3, repeats=12),
    "full": Effort(window_s=5.0, rounds_s=40.0, repeats=40),
}


class Bench:
    """Launches with known faults injected.

    Attributes:
        detectable: The smallest change between launches that was told from noise; None: not
            measured yet.
    """

    def __init__(self, launcher: Launcher, form: Form, seed: int) -> None:
        self.launcher = launcher
        self.form: Form = form
        self.effort = EFFORT[form]
        self.random = Random(seed)
        self._scratch = Scratch()
        self._num_launches = 0
        self.trained: list[LaunchAttribution] = []
        self.detectable: float | None = None

    def __enter__(self) -> "Bench":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._scratch.close()

    def folder(self) -> Path:
        """Return a new folder for a launch's logs."""
        self._num_launches += 1
        folder = self._scratch.folder / str(self._num_launches)
        folder.mkdir()
        return folder

    def train(
        self,
        workload: str,
        num_ranks: int = 2,
        fault: InjectedFault | None = None,
        hosts: VirtualHosts | None = None,
        plan: StepPlan | None = None,
    ) -> LaunchAttribution:
        """Train a workload of the self-test and attribute its steps.

        ``workload`` is a function of `WORKLOADS`. One rank trains without any strategy, more train
        under DDP. ``hosts`` None: the machine as it is; ``plan`` None: by the form.

        Raises:
            Unusable: The launch failed, or cannot be attributed.
        """
        cell = self._cell(workload, num_ranks, hosts, plan)
        launch = attribute(self._launch(cell, fault, hosts))
        assert launch is not None, "a launch without attribution is refused"
        self.trained.append(launch)
        return launch

    def train_with(
        self, strategy: Strategy, workload: WorkloadSpec, num_ranks: int, plan: StepPlan
    ) -> LaunchAttribution:
        """Train by another strategy on the machine as it is, nothing injected; attribute its steps.

        ``batch_size`` of the workload is the global batch.

        Raises:
            Unusable: The launch failed, was not traced whole, or cannot be attributed.
        """
        batch = workload.batch_size
        shards = strategy.num_shards(num_ranks)
        cell = self._cell("paced", num_ranks, None, plan).model_copy(
            update={
                "strategy": strategy,
                "workload": workload,
                "scaling": "strong",
                "global_batch": batch,
                "rank_batch": batch // shards,
            }
        )
        launch = attribute(self._launch(cell, None, None))
        assert launch is not None, "a launch without attribution is refused"
        if not all(pipeline.timeline is not None for pipeline in launch.pipelines):
            raise Unusable("not every pass of a pipeline was traced")
        return launch

    def step_s(
        self, num_ranks: int, hosts: VirtualHosts | None, plan: StepPlan, rank_batch: int = 1
    ) -> CellResult:
        """Train with nothing injected and no tracing; return the launch."""
        cell = self._cell("paced", num_ranks, hosts, plan).model_copy(
            update={"rank_batch": rank_batch, "global_batch": num_ranks * rank_batch}
        )
        return self._launch(cell, None, hosts)

    def probe(
        self, probe: Sweep | ClockCheck, fault: InjectedFault | None = None
    ) -> list[ProbeRecord]:
        """Run a probe, in a separate lab if it has virtual hosts.

        Raises:
            ProbeFailed: A rank failed.
            EnvironmentUnfit: There can be no virtual hosts here.
        """
        if probe.virtual_hosts is not None:
            self.launcher.move_to(probe.virtual_hosts, probe.world_size)
        self.launcher.inject(fault)
        return self.launcher.probe(probe, self.folder())

    def inject(self, kind: FaultKind, **size: float) -> InjectedFault:
        """Return a fault to inject, with a file for what it really was."""
        return InjectedFault(kind=kind, log=str(self.folder() / "fault"), **size)

    def _launch(
        self, cell: Cell, fault: InjectedFault | None, hosts: VirtualHosts | None
    ) -> CellResult:
        if hosts is not None:
            self.launcher.move_to(hosts, cell.world_size)
        self.launcher.inject(fault)
        launched = self.launcher.launch(cell, self.folder())
        now = datetime.now(UTC).isoformat(timespec="seconds")
        times = (launched.launch_s, launched.wall_s)
        result = launched_result(cell, launched.records, launched.failure, now, times)
        if result.status != "ok":
            raise Unusable(result.reason or result.status)
        why = why_not(result) if cell.steps.trace else None
        if why is not None:
            raise Unusable(why)
        return result

    def _cell(
        self, workload: str, num_ranks: int, hosts: VirtualHosts | None, plan: StepPlan | None
    ) -> Cell:
        target = CustomTarget(name=f"injected:{workload}", module=WORKLOADS, function=workload)
        return Cell(
            suite="selftest",
            case="selftest",
            strategy=Plain() if num_ranks == 1 else Ddp(bucket_mb=BUCKET_MB),
            workload=target,
            scaling="weak",
            world_size=num_ranks,
            global_batch=num_ranks,
            rank_batch=1,
            device="cpu",
            backend=None if num_ranks == 1 else "gloo",
            threads=1,
            virtual_hosts=hosts,
            purpose="measure",
            steps=plan or self.plan(),
            limit_s=LIMIT_S,
        )

    def plan(self) -> StepPlan:
        """Return how many steps a launch of this form takes."""
        return StepPlan(
            window_s=self.effort.window_s,
            rounds_s=self.effort.rounds_s,
            max_rounds=MAX_ROUNDS,
            max_warmup_steps=12,
        )


def written_down(fault: InjectedFault, rank: int) -> NDArray[np.float64]:
    """Return what a rank wrote of what was injected into it, in the order of the steps."""
    return np.loadtxt(f"{fault.log}.rank{rank}", ndmin=1)
