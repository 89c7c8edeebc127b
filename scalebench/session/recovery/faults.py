"""Making a rank fail at a random moment, going on with fewer, and timing it from outside."""

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.launch.base import Launched, Launcher
from scalebench.launch.lab import Lab
from scalebench.launch.local import LocalLauncher
from scalebench.launch.processes import interpreter, loopback_environment
from scalebench.records.files import write_model
from scalebench.records.measured.rank import RankRecord
from scalebench.records.measured.recovery import (
    AGENT,
    CAUGHT_UP,
    ElasticRun,
    ElasticStretch,
    Event,
    FaultFolder,
    FaultTimeline,
    fault_folder,
)
from scalebench.records.run import CellResult, launched_result
from scalebench.session.recovery.directory import NoTimeline, Outside, failure_of, timelines_of
from scalebench.spec import Cell, Ddp
from scalebench.spec.recovery import HANG_TIMEOUT_S, FaultKind, FaultPlan, Restarter

POLL_S = 0.002
CALM_POLL_S = 0.05
"""How often is looked while a job recovers: its time is being measured, so seldom."""
SIGNALS: dict[FaultKind, signal.Signals] = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}
SAVE_EVERY = 4
STRETCH_STEPS = 14
"""Steps with fewer ranks, and with all again; the failure comes after about as many."""
PATIENCE_S = 120.0
"""For each failure under torchrun, whose ranks import torch again."""
MONITOR_S = "0.1"
"""How often torchrun's agent looks after its ranks: its default, written out."""


@dataclass
class Striking:
    """Sends the signal of each fault when its step is done, a random moment later.

    In an attempt that continues after a failure, none is sent before the rank has caught up.

    Attributes:
        plans: Of a job's attempts, in order.
        cut_link: Cuts the link of the rank's host, where that is the fault.
        failed_ns: Attempt → when it was sent, on the monotonic clock; without those in which the
            rank raises itself, and those that did not come so far.

    Raises:
        NoTimeline: A fault could not be brought about. At the end of the block: the ranks, which
            wait for it, have been ended by then.
    """

    folder: FaultFolder
    plans: Sequence[FaultPlan]
    cut_link: Callable[[], None] | None = None
    failed_ns: dict[int, int] = field(default_factory=dict)
    _error: Exception | None = None
    _struck_rank: int | None = None
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> "Striking":
        if any(self._is_sent(plan) for plan in self.plans):
            self._thread = threading.Thread(target=self._strike_all, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, raised: object, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._error is not None and raised is None:
            raise NoTimeline(
                f"rank {self._struck_rank} could not be made to fail: {self._error}"
            ) from self._error

    def _is_sent(self, plan: FaultPlan) -> bool:
        """Tell whether the rank does not fail by itself."""
        return plan.fails and (plan.kind in SIGNALS or self.cut_link is not None)

    def _strike_all(self) -> None:
        for plan in filter(self._is_sent, self.plans):
            events = self._wait_for_step(plan)
            if events is None or self._error is not None:
                return
            self._strike(plan, events)

    def _wait_for_step(self, plan: FaultPlan) -> list[Event] | None:
        """Return a rank's events when it is time to strike it; None: the block ended before."""
        poll_s = CALM_POLL_S if plan.attempt else POLL_S
        while not self._over.wait(poll_s):
            events = self.folder.events(plan.attempt, plan.rank)
            counted_from = _counted_from(events, plan)
            if counted_from is None:
                continue
            poll_s, due = POLL_S, counted_from + plan.at_step
            if any(e.name == "step" and e.number >= due for e in events):
                return events
        return None

    def _strike(self, plan: FaultPlan, events: list[Event]) -> None:
        chance = random.Random(f"{plan.at_step} {plan.attempt}")
        time.sleep(chance.uniform(0, _usual_step_s(events)))
        pid = next(event.number for event in events if event.name == "started")
        self._struck_rank = plan.rank
        failed_ns = time.monotonic_ns()
        try:
            if self.cut_link is not None:
                self.cut_link()
            else:
                os.kill(pid, SIGNALS[plan.kind])
            self.failed_ns[plan.attempt] = failed_ns
        except ProcessLookupError:
            pass  # it ended by itself
        except Exception as error:  # said by __exit__: a thread has nobody to raise it to
            self._error = error
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)  # or it would train for as long as a launch may take


def _counted_from(events: list[Event], plan: FaultPlan) -> int | None:
    """Return the step from which a plan counts its own; None: the rank is not there yet."""
    if plan.attempt == 0:
        return 0
    return next((event.number for event in events if event.name == CAUGHT_UP), None)


def _usual_step_s(events: list[Event]) -> float:
    times = [event.time_ns for event in events if event.name == "step"]
    return (times[-1] - times[-2]) / 1e9 if len(times) > 1 else 0.0


def goes_on_with_fewer(cell: Cell) -> bool:
    """Tell whether a cell's job is to lose a rank and go on."""
    plan = cell.recovery
    wanted = plan is not None and plan.elastic
    return wanted and cell.world_size > 1 and cell.strategy.takes_any_size


def with_fewer_ranks(cell: Cell) -> Cell:
    """Return a cell after the loss of a rank: the same global batch, on as many as divide it.

    DDP keeps the size of its microbatches where it can, by accumulating more of them, and with it
    the memory that a rank needs; in every other case a rank's batch grows.
    """
    whole = cell.global_batch
    fewer = next(n for n in range(cell.world_size - 1, 0, -1) if whole % n == 0)
    changes = {"world_size": fewer, "rank_batch": whole // fewer}
    strategy = cell.strategy
    if isinstance(strategy, Ddp) and cell.world_size % fewer == 0:
        more = strategy.accumulate * cell.world_size // fewer
        strategy = strategy.model_copy(update={"accumulate": more})
    return cell.model_copy(
        update={**changes, "strategy": strategy, "restore_from": (cell.world_size,)}
    )


def measure_elastic(launcher: Launcher, cell: Cell, logs: Path) -> ElasticRun:
    """Train, lose a rank, go on with fewer, then with all again; and once without a stop.

    The cell has at least two ranks, and the directory for checkpoints; its ``repeat`` and the
    number after it are those of the failures' folders. ``logs`` gets a folder for each launch.

    Raises:
        NoTimeline: It did not go as planned.
    """
    folder, fewer = fault_folder(cell), with_fewer_ranks(cell)
    chance = random.Random(f"{cell.seed} {cell.case} elastic {cell.repeat}")
    plan = FaultPlan(
        kind="kill",
        rank=chance.randrange(cell.world_size),
        at_step=STRETCH_STEPS + chance.randrange(SAVE_EVERY),
        save_every=SAVE_EVERY,
    )
    folder.begin()
    folder.write_plan(plan)
    with Striking(folder, [plan]) as striking:
        lost = launcher.launch(cell, logs / "before")
    if lost.failure is None or not striking.failed_ns:
        raise NoTimeline("elastic: the fault did not come as planned")
    until = folder.last_step(0, cell.world_size) + STRETCH_STEPS
    _continue(launcher, fewer, folder, plan, 1, until, logs / "fewer")
    _continue(launcher, cell, folder, plan, 2, until + STRETCH_STEPS, logs / "again")
    unbroken = cell.model_copy(update={"repeat": cell.repeat + 1})
    fault_folder(unbroken).begin()
    end = until + STRETCH_STEPS
    never = plan.model_copy(update={"at_step": end + 1})
    _continue(launcher, unbroken, fault_folder(unbroken), never, 0, end, logs / "unbroken")
    sizes = (cell, fewer, cell)
    events = [
        [folder.events(attempt, rank) for rank in range(one.world_size)]
        for attempt, one in enumerate(sizes)
    ]
    whole = [fault_folder(unbroken).events(0, rank) for rank in range(cell.world_size)]
    return elastic_run(sizes, events, whole, striking.failed_ns[0])


def _continue(
    launcher: Launcher,
    cell: Cell,
    folder: FaultFolder,
    plan: FaultPlan,
    attempt: int,
    until: int,
    logs: Path,
) -> None:
    folder.write_plan(plan.model_copy(update={"attempt": attempt, "until": until}))
    done = launcher.launch(cell, logs)
    if done.failure is not None:
        raise NoTimeline(f"elastic: {cell.world_size} ranks did not go on: {done.failure.message}")


def elastic_run(
    cells: Sequence[Cell],
    events: Sequence[Sequence[Sequence[Event]]],
    unbroken: Sequence[Sequence[Event]],
    failed_ns: int,
) -> ElasticRun:
    """Return how a job went, from what its ranks noted.

    ``cells`` and ``events`` are of each stretch: with all ranks, with fewer, with all again; events
    are of each rank in it. ``unbroken``: of each rank in a run that nothing stopped.
    """
    stretches = [stretch_of(*pair) for pair in zip(cells, events, strict=True)]
    done = [_done_ns(of_ranks) for of_ranks in events]
    return ElasticRun(
        stretches=stretches,
        shrink_s=(min(done[1].values()) - failed_ns) / 1e9,
        grow_s=(min(done[2].values()) - max(done[1].values())) / 1e9,
        unbroken_loss=list(_mean_loss(unbroken).values()),
    )


def stretch_of(cell: Cell, ranks: Sequence[Sequence[Event]]) -> ElasticStretch:
    """Return the steps that all ranks of a stretch have done.

    Raises:
        NoTimeline: There is none.
    """
    done, loss = _done_ns(ranks), _mean_loss(ranks)
    if not done:
        raise NoTimeline(f"elastic: {cell.world_size} ranks did no step")
    return ElasticStretch(
        world_size=cell.world_size,
        rank_batch=cell.rank_batch,
        accumulate=getattr(cell.strategy, "accumulate", 1),
        first=min(done),
        loss=list(loss.values()),
        step_s=[
            (done[after] - done[before]) / 1e9
            for before, after in pairwise(done)
            if before % SAVE_EVERY
        ],
    )


def _done_ns(ranks: Sequence[Sequence[Event]]) -> dict[int, int]:
    """Return the number of each step that every rank has done, with when the last one had."""
    by_rank = [{e.number: e.time_ns for e in events if e.name == "step"} for events in ranks]
    common = set.intersection(*(set(steps) for steps in by_rank))
    return {step: max(steps[step] for steps in by_rank) for step in sorted(common)}


def _mean_loss(ranks: Sequence[Sequence[Event]]) -> dict[int, float]:
    """Return the loss of the global batch in each step that every rank has done."""
    by_rank = [
        {e.number: e.loss for e in events if e.name == "step" and e.loss is not None}
        for events in ranks
    ]
    common = set.intersection(*(set(steps) for steps in by_rank))
    return {step: sum(s[step] for s in by_rank) / len(by_rank) for step in sorted(common)}


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
