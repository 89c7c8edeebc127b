"""A session: plan the cells, launch one at a time, store each at once, summarise what there is."""

import hashlib
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from scalebench import __version__, machine
from scalebench.anonymity import Anonymiser, Model, anonymise_files, names_of_this_machine
from scalebench.certificates import newest
from scalebench.discover import load_suites
from scalebench.ending import Run, finish, not_stored
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.frontier import CannotProbe, at_the_frontier, for_frontier
from scalebench.gpu_claims import GpuClaims
from scalebench.launch.base import Launcher
from scalebench.launch.local import LocalLauncher
from scalebench.observer import Observer, Silent
from scalebench.outcome import launched_result, skipped_result
from scalebench.paths import RunPaths, default_runs_folder
from scalebench.plan import Machine, Plan, Request, make_plan
from scalebench.records import CellResult, RunInfo, RunSpec
from scalebench.run_calibration import about_profile, calibrate_run, read_profile
from scalebench.spec import Cell, Suite
from scalebench.store import (
    StoredRun,
    claim_folder,
    create_run_folder,
    load_run,
    point_latest_at,
    working_on,
    write_sealed,
)
from scalebench.too_large import why_too_large


class Interrupted(Exception):
    """The run was stopped by a signal; what was done is kept in ``run``."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted; what was done is in {run.paths.root}")
        self.run = run


def run(
    suites: Suite | str | Sequence[Suite | str] = (),
    world_sizes: Sequence[int] | None = None,
    *,
    out: Path | None = None,
    request: Request | None = None,
) -> Run:
    """Measure suites at the given numbers of ranks and return the run.

    Args:
        suites: Suites, or names or paths of suites; none: the core suites.
        world_sizes: Numbers of ranks; None: 1, 2, 4, … up to the devices.
        out: The run folder; None: a new one below ``reports/``.
        request: Everything else that the command line can say.

    Raises:
        UsageError: The request cannot be met as it stands.
        EnvironmentUnfit: This machine cannot meet it.
    """
    given = [suites] if isinstance(suites, Suite | str) else list(suites)
    loaded = [s for item in given for s in ([item] if isinstance(item, Suite) else _named(item))]
    wanted = request or Request()
    if world_sizes is not None:
        wanted = _with_sizes(wanted, world_sizes)
    sizes = ",".join(map(str, wanted.world_sizes or ()))
    command = [
        "scalebench",
        "run",
        *(s.name for s in loaded),
        *(["--gpus", sizes] if sizes else []),
    ]
    with Session(Silent()) as session:
        return session.run(wanted, loaded or load_suites(()), command, out)


def _named(name: str) -> list[Suite]:
    return load_suites([name])


def _with_sizes(request: Request, world_sizes: Sequence[int]) -> Request:
    from dataclasses import replace

    sizes = tuple(world_sizes)
    if not sizes or any(not isinstance(n, int) or n < 1 for n in sizes):
        raise UsageError(f"world_sizes={list(sizes)}: give whole numbers of at least 1.")
    return replace(request, world_sizes=sizes)


@dataclass(frozen=True)
class Prepared:
    """A plan that can be carried out here.

    Attributes:
        environment: Fingerprint of the machine.
        num_parameters: Of users' own workloads, by name.
    """

    plan: Plan
    environment: dict[str, Any]
    num_parameters: dict[str, int]


class Session:
    """Holds the launcher for as long as there are cells to launch, and closes it then.

    Args:
        observer: Is told how it goes.
        launcher: Starts the ranks; None: processes on this machine.
    """

    def __init__(self, observer: Observer, launcher: Launcher | None = None) -> None:
        self.observer = observer
        self.launcher: Launcher = LocalLauncher() if launcher is None else launcher
        self.claims = GpuClaims()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.launcher.close()
        finally:
            self.claims.close()

    def prepare(self, request: Request, suites: Sequence[Suite]) -> Prepared:
        """Plan, fingerprint the machine, and try the users' own workloads once.

        Raises:
            UsageError: The request or a workload cannot be used.
            EnvironmentUnfit: CUDA was asked for and there is none.
        """
        self.observer.preparing()
        survey = self.launcher.survey()
        world = self.launcher.world
        here = Machine(len(survey["devices"]), machine.num_cores(), world)
        if request.max_batch:
            request = for_frontier(request, request.device or ("cuda" if here.num_gpus else "cpu"))
        plan = make_plan(request, suites, here)
        sizes = {
            target.name: self.launcher.describe(target, plan.spec.device)["num_parameters"]
            for target in plan.custom_workloads
        }
        environment = machine.fingerprint(survey, world) | {"threads": plan.spec.threads}
        return Prepared(plan, environment, sizes)

    def run(
        self,
        request: Request,
        suites: Sequence[Suite],
        command: Sequence[str],
        out: Path | None = None,
    ) -> Run:
        """Start a new run.

        Raises:
            Interrupted: SIGINT or SIGTERM came; what was done is stored.
        """
        given = read_profile(request.link_profile) if request.link_profile else None
        paths = create_run_folder(out) if out is not None else None
        started = datetime.now(UTC)
        prepared = self.prepare(request, suites)
        plan = prepared.plan
        self._place(plan.spec)
        self._claim(plan.spec, prepared.environment, request.allow_busy)
        run_id = _run_id(started, plan)
        if paths is None:
            paths = create_run_folder(claim_folder(default_runs_folder() / run_id))
        if request.max_batch:
            plan = at_the_frontier(plan, request.memory_limit_bytes, partial(self._fits, paths))
        foreign = (
            machine.elsewhere(given.machine, prepared.environment) if given is not None else []
        )
        info = RunInfo(
            run_id=run_id,
            version=__version__,
            created=started.isoformat(timespec="seconds"),
            command=list(command),
            spec=plan.spec,
            environment=prepared.environment,
            plan=list(plan.cells),
            notices=[
                *plan.notices,
                *about_profile(given, foreign),
                *self.claims.shared,
            ],
            certificate=newest(prepared.environment),
            profile_differs=foreign,
            sealed=True,
        )
        info = self._without_names(info, plan.spec)
        paths.cells.mkdir(exist_ok=True)
        write_sealed(paths.run_json, info)
        if out is None:
            point_latest_at(paths.root)
        if given is not None:
            write_sealed(paths.link_profile, given)
        return self._work_off(StoredRun(paths, info, {}, link=given))

    def resume(self, root: Path, allow_busy: bool = False) -> Run:
        """Go on with a run: launch the cells that are missing or went wrong.

        Raises:
            EnvironmentUnfit: This machine or torch is not the one that the run was begun on,
                cannot make its virtual hosts, or has GPUs on which another run measures.
        """
        stored = load_run(root)
        self.observer.preparing()
        survey = self.launcher.survey()
        here = machine.fingerprint(survey, self.launcher.world)
        different = machine.differences(here, stored.info.environment)
        if different:
            raise EnvironmentUnfit(
                f"{root} was begun under another {', '.join(different)}; its cells would not be "
                "comparable. Start a new run here."
            )
        self._place(stored.info.spec)
        self._claim(stored.info.spec, here, allow_busy)
        notices = [*stored.info.notices, *self.claims.shared]
        stored.info = stored.info.model_copy(update={"notices": notices})
        create_run_folder(root, resume=True)
        stored.paths.cells.mkdir(exist_ok=True)
        stored.results = {i: r for i, r in stored.results.items() if _is_final(r)}
        return self._work_off(stored)

    def _place(self, spec: RunSpec) -> None:
        """Make the virtual hosts that a run asks for, before anything of it is stored."""
        if spec.virtual_hosts is not None:
            self.launcher.move_to(spec.virtual_hosts, max(spec.world_sizes))

    def _claim(self, spec: RunSpec, environment: dict[str, Any], allow_busy: bool) -> None:
        """Claim the GPUs that the ranks of this machine will run on, for as long as it takes."""
        if spec.device == "cuda":
            uuids = [device["uuid"] for device in environment.get("devices", [])]
            self.claims.claim(uuids, allow_busy)

    def _without_names(self, model: Model, spec: RunSpec) -> Model:
        """Return a record as it is stored: without names where the run is to have none."""
        return self._anonymiser().model(model) if spec.anonymise else model

    def _anonymiser(self) -> Anonymiser:
        world = self.launcher.world
        nodes = world.nodes[1:] if world is not None else ()
        others = {node.host: f"<host {number}>" for number, node in enumerate(nodes, 1)}
        return Anonymiser(names_of_this_machine(others))

    def _fits(self, paths: RunPaths, probe: Cell) -> bool:
        """Launch a probe of the frontier; tell whether its batch fits."""
        self.observer.started(probe)
        failure = self.launcher.launch(probe, paths.logs(probe.id)).failure
        if failure is None or failure.kind == "oom":
            return failure is None
        raise CannotProbe(failure.message)

    def _work_off(self, stored: StoredRun) -> Run:
        """Launch what has no result yet, storing each result at once; one session at a time."""
        with working_on(stored.paths):
            return self._launch_missing(stored)

    def _launch_missing(self, stored: StoredRun) -> Run:
        self.observer.planned(stored.info, len(stored.results))
        try:
            return finish(stored, self._carry_out(stored))
        except KeyboardInterrupt:
            raise Interrupted(finish(stored, "interrupted")) from None
        except OSError as error:
            raise not_stored(stored, error) from error
        except BaseException:
            with suppress(OSError):  # the disk may be what went wrong
                finish(stored, "interrupted")
            raise

    def _carry_out(self, stored: StoredRun) -> str:
        """Launch what has no result yet; return the run's status afterwards."""
        budget_s = stored.info.spec.budget_s
        deadline = time.monotonic() + budget_s if budget_s else None
        calibrated = not stored.info.plan and self._calibrated(stored)
        for cell in stored.info.plan:
            if cell.id in stored.results:
                continue
            left_s = deadline - time.monotonic() if deadline else float("inf")
            if left_s <= 0:
                return "over budget"
            if cell.purpose == "measure" and not calibrated:
                calibrated = self._calibrated(stored)
            self._do(cell if deadline is None else cell.shortened(left_s), stored)
        return "complete"

    def _calibrated(self, stored: StoredRun) -> bool:
        """Calibrate the run's links where that has not been done; return True."""
        if stored.link is None:
            calibrate_run(self.launcher, stored, self.observer.calibrating)
            if stored.info.spec.anonymise and stored.link is not None:
                stored.link = self._anonymiser().model(stored.link)
                write_sealed(stored.paths.link_profile, stored.link)
                anonymise_files(stored.paths.logs("calibration"), self._anonymiser())
        return True

    def _do(self, cell: Cell, stored: StoredRun) -> None:
        spec = stored.info.spec
        result = self._without_names(self._result_of(cell, stored), spec)
        if spec.anonymise:
            anonymise_files(stored.paths.logs(cell.id), self._anonymiser())
        stored.results[cell.id] = result
        write_sealed(stored.paths.cell(cell.id), result, indent=None)
        stored.damaged.pop(stored.paths.cell(cell.id).name, None)
        self.observer.ended(result)

    def _result_of(self, cell: Cell, stored: StoredRun) -> CellResult:
        now = datetime.now(UTC).isoformat(timespec="seconds")
        inspection = stored.results.get(cell.model_copy(update={"purpose": "inspect"}).id)
        if cell.skip_reason:
            return skipped_result(cell, cell.skip_reason, now)
        if inspection is not None and inspection.status != "ok":
            return skipped_result(cell, f"not measured: {inspection.reason}", now)
        too_large = why_too_large(cell, stored.results.values())
        if too_large is not None and not stored.info.spec.keep_going:
            return skipped_result(cell, too_large, now)
        self.observer.started(cell)
        launched = self.launcher.launch(cell, stored.paths.logs(cell.id))
        if launched.failure is not None and launched.failure.kind == "usage":
            raise UsageError(launched.failure.message)
        times = (launched.launch_s, launched.wall_s)
        return launched_result(cell, launched.records, launched.failure, now, times, launched.node)


def _is_final(result: CellResult) -> bool:
    """Tell whether a resumed run keeps a result: not what failed, nor was skipped for it."""
    if result.status == "skipped":
        return result.cell.skip_reason is not None
    return result.status != "failed"


def _run_id(started: datetime, plan: Plan) -> str:
    """Return ``<utc>_<suites>_<device>_<sha7>``; the digest is of the specification."""
    suites = "+".join(suite.name for suite in plan.spec.suites)[:60]
    digest = hashlib.sha256(plan.spec.model_dump_json().encode()).hexdigest()[:7]
    return f"{started:%Y%m%dT%H%M%SZ}_{suites}_{plan.spec.device}_{digest}"
