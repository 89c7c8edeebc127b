"""The search for the largest batches of a plan: each probe is a launch."""

from scalebench.launch.base import Launcher
from scalebench.records.paths import RunPaths
from scalebench.session.plan import Plan
from scalebench.session.plan.max_batch import CannotProbe, with_largest_batches
from scalebench.session.progress import ProgressListener
from scalebench.spec import Cell


def search_largest_batches(
    launcher: Launcher,
    plan: Plan,
    limit_bytes: int | None,
    paths: RunPaths,
    progress: ProgressListener,
) -> Plan:
    """Return the plan with each row's batch as large as fits.

    Args:
        launcher: Starts the ranks of a probe.
        plan: Under weak scaling.
        limit_bytes: Of a rank's peak; None: what the device has.
        paths: Where the probes' logs go.
        progress: Hears of each probe.
    """

    def fits(probe: Cell) -> bool:
        progress.started(probe)
        failure = launcher.launch(probe, paths.logs(probe.id)).failure
        if failure is None or failure.kind == "oom":
            return failure is None
        raise CannotProbe(failure.message)

    return with_largest_batches(plan, limit_bytes, fits)
