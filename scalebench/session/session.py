"""A session: prepare, claim, launch one cell at a time, store each at once, summarise at the end.

Each step is a module next to this one; this one has their order.
"""

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path

from scalebench import __version__, machine
from scalebench.analysis.run import load_run, read_info
from scalebench.launch.base import Launcher
from scalebench.launch.local import LocalLauncher
from scalebench.records.folder import point_latest_at, require_plain, working_on
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo
from scalebench.session.calibration.of_run import about_profile, read_profile
from scalebench.session.cell_runner import CellRunner, ProgressListener, only_whole_launches
from scalebench.session.interleaved.run_process import RoundRequests
from scalebench.session.machine.gpu_locks import (
    Devices,
    GpuClaims,
    begin_in,
    claim_devices,
    run_id_of,
)
from scalebench.session.plan import Plan, Request
from scalebench.session.plan.max_batch import CannotProbe, with_largest_batches
from scalebench.session.plan.prepare import Prepared, check_same_machine, prepare
from scalebench.session.precision import add_rounds, make_requested_rounds
from scalebench.session.recovery.directory import (
    own_directories,
    remove_checkpoints,
    with_directory,
)
from scalebench.session.selftest.full import newest
from scalebench.session.storing.anonymise import with_script
from scalebench.session.storing.code import check_code, code_of, folder_of
from scalebench.session.storing.finish import Run, RunStore, cleaner_for, finish, results_not_saved
from scalebench.spec import Cell, Suite
from scalebench.spec.script import ScriptTarget


def search_largest_batches(
    launcher: Launcher,
    plan: Plan,
    limit_bytes: int | None,
    paths: RunPaths,
    progress: ProgressListener,
) -> Plan:
    """Return the plan with each row's batch as large as fits.

    The plan is under weak scaling. ``limit_bytes``: of a rank's peak; None: what the device has.
    """

    def fits(probe: Cell) -> bool:
        progress.started(probe)
        failure = launcher.launch(probe, paths.logs(probe.id)).failure
        if failure is None or failure.kind == "oom":
            return failure is None
        raise CannotProbe(failure.message)

    return with_largest_batches(plan, limit_bytes, fits)


class Interrupted(Exception):
    """The run was stopped by a signal; results so far are kept in ``run``."""

    def __init__(self, run: Run) -> None:
        super().__init__(f"interrupted; results so far are in {run.paths.root}")
        self.run = run


class Session:
    """Holds the launcher for as long as there are cells to launch, and closes it then.

    ``launcher`` None: processes on this machine. ``requests`` asks for further rounds of a new run;
    None: the run knows how many there are.
    """

    def __init__(
        self,
        progress: ProgressListener,
        launcher: Launcher | None = None,
        requests: RoundRequests | None = None,
    ) -> None:
        self.progress = progress
        self.requests = requests
        self._allow_busy = False
        self.launcher: Launcher = LocalLauncher() if launcher is None else launcher
        self.claims = GpuClaims()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the processes that start ranks, and let go of the GPUs."""
        try:
            self.launcher.close()
        finally:
            self.claims.close()

    def prepare(self, request: Request, suites: Sequence[Suite]) -> Prepared:
        """Plan and fingerprint the machine; see `scalebench.session.plan.prepare.prepare`."""
        self.progress.preparing()
        return prepare(self.launcher, request, suites)

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
        self._allow_busy = request.allow_busy
        link = read_profile(request.link_profile) if request.link_profile else None
        with ExitStack() as held:
            if out is not None:
                paths = held.enter_context(working_on(out, new=True))
            started = datetime.now(UTC)
            prepared = self.prepare(request, suites)
            plan, environment = prepared.plan, prepared.environment
            shared = claim_devices(
                self.launcher, self.claims, plan.spec, environment, request.allow_busy
            )
            run_id = run_id_of(started, plan.spec)
            if out is None:
                paths = held.enter_context(begin_in(None, run_id))
            if request.max_batch:
                plan = search_largest_batches(
                    self.launcher, plan, request.memory_limit_bytes, paths, self.progress
                )
            cells = with_directory(plan.cells, request.checkpoint_dir, paths.root, run_id)
            foreign = machine.elsewhere(link.machine, environment) if link is not None else []
            code = code_of(cells)
            info = RunInfo(
                run_id=run_id,
                version=__version__,
                created=started.isoformat(timespec="seconds"),
                command=list(command),
                spec=plan.spec,
                environment=environment,
                plan=cells,
                notices=[*plan.notices, *about_profile(link, foreign), *shared],
                largest_batches=list(plan.largest_batches),
                certificate=newest(environment),
                profile_differs=foreign,
                sealed=True,
                code=code,
                folder=folder_of(code),
            )
            store = RunStore.create(paths, info, link, cleaner_for(info, self.launcher))
            if out is None:
                point_latest_at(paths.root)
            return self._carry_out(store)

    def resume(
        self,
        root: Path,
        allow_busy: bool = False,
        changed_script: bool = False,
        checkpoint_dir: Path | None = None,
        script: ScriptTarget | None = None,
    ) -> Run:
        """Go on with a run: launch the cells that are missing or went wrong.

        ``allow_busy``: use GPUs on which another run measures. ``changed_script``: go on although
        the user's script or workload has changed. ``checkpoint_dir``: where checkpoints go, if the
        run's directory is not known any more. ``script``: as it was given again.

        Raises:
            UsageError: The folder holds what is not the run's, or the user's script has changed.
            EnvironmentUnfit: This machine or torch is not the one that the run was begun on,
                cannot make its virtual hosts, or has GPUs on which another run measures.
            Interrupted: SIGINT or SIGTERM came; what was done is stored.
        """
        read_info(root)
        root = root.resolve() if root.is_symlink() else root  # reports/latest may come to move
        with working_on(root):
            require_plain(root)
            stored = load_run(root)
            info = with_script(stored.info, script, root)
            again = check_code(info, changed_script)
            folders = own_directories(info.plan, checkpoint_dir, root, info.run_id)
            self.progress.preparing()
            here = check_same_machine(self.launcher, stored)
            shared = claim_devices(self.launcher, self.claims, info.spec, here, allow_busy)
            notices = [*info.notices, *shared, *again.notices]
            stored.info = info.model_copy(update={"notices": notices, "code": again.code})
            whole = only_whole_launches(stored.results)
            stored.results = {i: r for i, r in whole.items() if _is_final(r)}
            cleaner = cleaner_for(stored.info, self.launcher)
            return self._carry_out(RunStore(stored, cleaner, folders))

    def _carry_out(self, store: RunStore) -> Run:
        """Launch what has no result yet and finish the run, however it ends; one at a time."""
        stored = store.run
        self.progress.planned(store.as_stored().info, len(stored.results))
        try:
            status = self._launch_all(store)
            if status == "complete":
                folders = store.checkpoints.values()
                remove_checkpoints(folders, stored.paths.root, stored.info.run_id)
            return finish(store.as_stored(), status)
        except KeyboardInterrupt:
            raise Interrupted(_interrupted(store)) from None
        except OSError as error:
            raise results_not_saved(store.as_stored(), error) from error
        except BaseException:
            with suppress(OSError):  # the disk may be what went wrong
                finish(store.as_stored(), "interrupted")
            raise

    def _launch_all(self, store: RunStore) -> str:
        """Launch the plan, and further rounds where a precision is wanted; return the status."""
        runner = CellRunner(self.launcher, store, self.progress)
        if self.requests is not None:
            devices = Devices(self.launcher, self.claims, self._allow_busy)
            return make_requested_rounds(store, runner, self.requests, devices)
        status = runner.run_missing()
        if status != "complete":
            return status
        return add_rounds(store, runner.run_missing, runner.began)


def _interrupted(store: RunStore) -> Run:
    """Store what was being stored when the run was ended, and how far it came."""
    try:
        store.keep_unsaved()
        return finish(store.as_stored(), "interrupted")
    except OSError as error:
        raise results_not_saved(store.as_stored(), error) from error


def _is_final(result: CellResult) -> bool:
    """Tell whether a resumed run keeps a result: not what failed, nor was skipped for it."""
    if result.status == "skipped":
        return result.cell.skip_reason is not None
    return result.status != "failed"
