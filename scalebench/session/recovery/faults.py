"""Making a rank fail, having all start again, and timing it from outside."""

import os
import random
import subprocess
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.launch.base import Launched, Launcher
from scalebench.launch.lab import Lab
from scalebench.launch.local import LocalLauncher
from scalebench.launch.loopback import loopback_environment
from scalebench.launch.processes import interpreter
from scalebench.records.measured.fault_events import AGENT, FaultFolder, fault_folder
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.recovery import ElasticRun, FaultTimeline
from scalebench.records.run import CellResult, launched_result
from scalebench.records.storage.files import write_model
from scalebench.session.recovery.elastic import SAVE_EVERY, goes_on_with_fewer, measure_elastic
from scalebench.session.recovery.striking import Striking
from scalebench.session.recovery.timeline import NoTimeline, Outside, failure_of, timelines_of
from scalebench.spec import Cell
from scalebench.spec.recovery import HANG_TIMEOUT_S, FaultKind, FaultPlan, Restarter

PATIENCE_S = 120.0
"""For each failure under torchrun, whose ranks import torch again."""
MONITOR_S = "0.1"
"""How often torchrun's agent looks after its ranks: its default, written out."""


def measure_faults(launcher: Launcher, cell: Cell, logs: Path, started: str) -> CellResult:
    """Have ranks of a cell fail in every way that its suite wants; return how each failure went.

    ``cell`` has the directory for checkpoints; ``started`` is UTC, ISO 8601. ``logs`` gets a folder
    for each launch.
    """
    began = time.monotonic()
    timelines: list[FaultTimeline] = []
    records: Launched[RankRecord] | None = None
    for number, (by, plans) in enumerate(failing_jobs(cell)):
        one = cell.model_copy(update={"repeat": number})
        folder = fault_folder(one)
        folder.begin()
        try:
            if by == "torchrun":
                timelines += _under_torchrun(one, plans, folder, logs / str(number))
            else:
                some, records = _by_launcher(launcher, one, plans, folder, logs / str(number))
                timelines += some
        except NoTimeline as error:
            return CellResult(cell=cell, status="failed", reason=f"{by}: {error}", started=started)
    try:
        elastic = _elastic_runs(launcher, cell, len(timelines), logs)
    except NoTimeline as error:
        return CellResult(cell=cell, status="failed", reason=str(error), started=started)
    wall_s = time.monotonic() - began
    if records is None and timelines:  # ranks that others start leave no record
        done = CellResult(cell=cell, status="ok", started=started, wall_s=wall_s)
    else:
        kept = records.records if records else []
        done = launched_result(cell, kept, None, started, (None, wall_s), None)
    return done.model_copy(
        update={
            "faults": timelines,
            "elastic": elastic[0] if elastic else None,
            "elastic_repeats": elastic[1:],
        }
    )


def _elastic_runs(
    launcher: Launcher, cell: Cell, first_folder: int, logs: Path
) -> list[ElasticRun]:
    """Lose a rank for good as often as the suite has failures of a kind; each takes two folders."""
    if cell.recovery is None or not goes_on_with_fewer(cell):
        return []
    numbers = [first_folder + 2 * run for run in range(cell.recovery.fault_repeats)]
    return [
        measure_elastic(
            launcher, cell.model_copy(update={"repeat": number}), logs / f"elastic{number}"
        )
        for number in numbers
    ]


def wanted_faults(cell: Cell) -> Iterator[tuple[Restarter, FaultKind]]:
    """Yield who starts the ranks again, and how one fails, in rounds over both."""
    plan = cell.recovery
    assert plan is not None, "only cells of a suite with recovery fail"
    for _ in range(plan.fault_repeats):
        for by in plan.restarted_by:
            for kind in plan.faults:
                if kind == "hang" and cell.world_size == 1:
                    continue  # no other rank waits for it: only the time limit ends it
                if kind == "link" and not _has_links(cell):
                    continue
                if by != "scalebench" and (kind == "link" or cell.virtual_hosts is not None):
                    continue  # others do not put ranks on virtual hosts
                if kind == "hang" and by == "torchrun" and not plan.hang_under_torchrun:
                    continue
                yield by, kind


def _has_links(cell: Cell) -> bool:
    """Tell whether the ranks are on more than one virtual host."""
    hosts = cell.virtual_hosts
    return hosts is not None and hosts.num_hosts(cell.world_size) > 1


def failing_jobs(cell: Cell) -> list[tuple[Restarter, list[FaultPlan]]]:
    """Return the jobs of a cell that fail, and for each what the ranks of its attempts do.

    A job fails as often as its suite wants, one failure after the other, and ends when it has
    caught up with the last.
    """
    jobs: dict[Restarter, list[FaultPlan]] = {}
    for number, (by, kind) in enumerate(wanted_faults(cell)):
        plan = plan_of(cell.model_copy(update={"repeat": number}), kind)
        plans = jobs.setdefault(by, [])
        plans.append(plan.model_copy(update={"attempt": len(plans)}))
    for plans in jobs.values():
        plans.append(plans[-1].model_copy(update={"attempt": len(plans), "fails": False}))
    return list(jobs.items())


def plan_of(cell: Cell, kind: FaultKind) -> FaultPlan:
    """Return a failure of a random rank after a random step, the same in every run."""
    chance = random.Random(f"{cell.seed} {cell.case} {cell.repeat}")
    return FaultPlan(
        kind=kind,
        rank=chance.randrange(cell.world_size),
        at_step=SAVE_EVERY + 1 + chance.randrange(2 * SAVE_EVERY),
        save_every=SAVE_EVERY,
    )


def _by_launcher(
    launcher: Launcher, cell: Cell, plans: Sequence[FaultPlan], folder: FaultFolder, logs: Path
) -> tuple[list[FaultTimeline], Launched[RankRecord]]:
    *failing, last = plans
    outside = [
        _one_failure(launcher, cell, plan, folder, logs / str(plan.attempt)) for plan in failing
    ]
    folder.write_plan(last)
    again = launcher.launch(cell, logs / str(last.attempt))
    if again.failure is not None:
        raise NoTimeline(f"the job did not continue: {again.failure.message}")
    return _timelines(cell, plans, "scalebench", outside, folder), again


def _one_failure(
    launcher: Launcher, cell: Cell, plan: FaultPlan, folder: FaultFolder, logs: Path
) -> Outside:
    folder.write_plan(plan)
    if plan.kind in ("hang", "link"):
        cell = cell.model_copy(update={"collective_timeout_s": HANG_TIMEOUT_S})
    set_link = partial(_lab_of(launcher).set_link, plan.rank) if plan.kind == "link" else None
    with Striking(folder, [plan], set_link and partial(set_link, up=False)) as striking:
        lost = launcher.launch(cell, logs)
    if set_link is not None:
        set_link(up=True)
    if lost.failure is not None and lost.failure.kind == "usage":
        raise UsageError(lost.failure.message)
    failed_ns = striking.failed_ns.get(plan.attempt) or _noted(folder, plan)
    if lost.failure is None or lost.noticed_ns is None or lost.stopped_ns is None or not failed_ns:
        told = lost.failure.message if lost.failure else "no rank failed"
        raise NoTimeline(f"{failure_of(plan)}: it did not come as planned: {told}")
    return failed_ns, lost.noticed_ns, lost.stopped_ns


def _lab_of(launcher: Launcher) -> Lab:
    assert isinstance(launcher, LocalLauncher) and isinstance(launcher.placement, Lab)
    return launcher.placement


def _under_torchrun(
    cell: Cell, plans: Sequence[FaultPlan], folder: FaultFolder, logs: Path
) -> list[FaultTimeline]:
    """Run one job: torchrun starts its ranks again after each failure."""
    for plan in plans:
        folder.write_plan(plan)
    write_model(folder.job, cell)
    logs.mkdir(parents=True, exist_ok=True)
    command = [
        *(*interpreter(), "-m", "scalebench.worker.checkpoints.elastic_agent", str(folder.root)),
        *("--standalone", f"--nproc-per-node={cell.world_size}"),
        *(f"--max-restarts={len(plans) - 1}", f"--monitor-interval={MONITOR_S}"),
        *("-m", "scalebench.worker.checkpoints.elastic_rank", str(folder.root)),
    ]
    environment = {**os.environ, **loopback_environment(), "OMP_NUM_THREADS": str(cell.threads)}
    log = logs / "torchrun.log"
    with (
        log.open("wb") as output,
        Striking(folder, plans) as striking,
        subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env=environment,
        ) as process,
    ):
        try:
            _wait(process, folder, log)
        finally:
            process.kill()  # of a process that has ended it does nothing
    if process.returncode:
        raise NoTimeline(f"torchrun ended with {process.returncode}; see {log}")
    outside = [_outside(folder, plan, striking, log) for plan in plans[:-1]]
    return _timelines(cell, plans, "torchrun", outside, folder)


def _wait(process: "subprocess.Popen[bytes]", folder: FaultFolder, log: Path) -> None:
    """Wait for torchrun's end, as long as it goes on from failure to failure."""
    begun = 0
    while True:
        try:
            process.wait(PATIENCE_S)
            return
        except subprocess.TimeoutExpired:
            before, begun = (
                begun,
                sum(bool(folder.events(p.attempt, 0)) for p in folder.read_plans()),
            )
            if begun == before:
                raise NoTimeline(
                    f"torchrun did not go on within {PATIENCE_S:g} s; see {log}"
                ) from None


def _outside(folder: FaultFolder, plan: FaultPlan, striking: Striking, log: Path) -> Outside:
    """Return when a rank failed, when its launcher heard of it, and when no rank was left."""
    agent = {event.name: event.time_ns for event in folder.events(plan.attempt, AGENT)}
    failed_ns = striking.failed_ns.get(plan.attempt) or _noted(folder, plan)
    if failed_ns is None or not {"noticed", "stopped"} <= agent.keys():
        raise NoTimeline(f"{failure_of(plan)}: it did not come as planned; see {log}")
    return failed_ns, agent["noticed"], agent["stopped"]


def _timelines(
    cell: Cell,
    plans: Sequence[FaultPlan],
    by: Restarter,
    outside: Sequence[Outside],
    folder: FaultFolder,
) -> list[FaultTimeline]:
    """Return the timeline of each failure of a job, in order."""
    attempts = [
        [folder.events(plan.attempt, rank) for rank in range(cell.world_size)] for plan in plans
    ]
    return timelines_of(plans[:-1], by, outside, attempts)


def _noted(folder: FaultFolder, plan: FaultPlan) -> int | None:
    """Return when a rank that raises has done so, as it noted itself."""
    events = folder.events(plan.attempt, plan.rank)
    return next((event.time_ns for event in events if event.name == "failed"), None)
