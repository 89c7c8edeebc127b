"""The calibration that a run makes of its own links: what its predictions rest on.

Only the operations that the run's strategies use, and only sizes such as they send.
"""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scalebench import __version__, machine
from scalebench.calibration import Sweeps, measured_points
from scalebench.costmodel.link_profile import LinkProfile, profile_of
from scalebench.errors import UsageError
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.probe import CollectiveName
from scalebench.spec import Cell
from scalebench.store import StoredRun, read_model, write_sealed

OPERATIONS: dict[str, tuple[CollectiveName, ...]] = {
    "ddp": ("all_reduce",),
    "fsdp": ("all_gather", "reduce_scatter", "all_reduce"),
    "fsdp1": ("all_gather", "reduce_scatter", "all_reduce"),
    "zero1": ("all_reduce", "broadcast"),
}
"""Strategy → the operations that its steps ask for."""

PARTS = (1, 2, 4, 16, 64)
"""The largest message and these parts of it: more would keep a slow link busy for long."""

REPEATS = 2
SMALLEST_LARGEST_BYTES = 2**16
LARGEST_BYTES = 2**28


def read_profile(path: Path) -> LinkProfile:
    """Read a link profile that a user gives.

    Raises:
        UsageError: It is none, or it holds no fit.
    """
    profile = read_model(path, LinkProfile)
    if not profile.fits:
        raise UsageError(f"{path} holds no fit: calibrate at least 3 sizes at 2 ranks or more.")
    return profile


def about_profile(given: LinkProfile | None, environment: Mapping[str, Any]) -> list[str]:
    """Say what a reader has to know of a profile that was given."""
    if given is None:
        return []
    here = machine.identity(environment)
    different = [name for name in here if given.machine.get(name) != here[name]]
    if not given.machine:
        where = "of a machine that it does not name"
    elif different:
        where = f"of another machine (other {', '.join(different)})"
    else:
        where = "of this machine"
    return [f"Predictions rest on a link profile of {given.created[:10]}, {where}"]


def calibrate_run(
    launcher: Launcher, stored: StoredRun, tell: Callable[[str, object], None]
) -> None:
    """Measure what the run's predictions need, fit it, and keep it in the run's folder.

    A calibration that fails costs the predictions and nothing else; the run says why there are
    none.
    """
    cells = [c for c in stored.info.plan if c.purpose == "measure" and _is_predicted(c)]
    if not cells:
        return
    sweeps = _sweeps(cells, stored)
    try:
        points = measured_points(
            launcher, sweeps, cells[0].device, stored.paths.logs("calibration"), tell
        )
    except ProbeFailed as error:
        stored.link_unavailable = f"calibrating the links failed: {error}"
        return
    stored.link = profile_of(
        points,
        (),
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
        machine=machine.identity(stored.info.environment),
        device=cells[0].device,
        backend=cells[0].backend or "",
        link=sweeps.hosts.link if sweeps.hosts else "",
    )
    write_sealed(stored.paths.link_profile, stored.link)


def _is_predicted(cell: Cell) -> bool:
    """Tell whether a row is predicted: not where its steps are not looked into."""
    several = cell.world_size > 1 and cell.skip_reason is None
    shared_gpu = cell.device == "cuda" and cell.oversubscribed
    return several and not shared_gpu and cell.steps.trace and cell.strategy.kind in OPERATIONS


def _sweeps(cells: Iterable[Cell], stored: StoredRun) -> Sweeps:
    cells = list(cells)
    wanted = {op for cell in cells for op in OPERATIONS[cell.strategy.kind]}
    largest = max(_largest_bytes(cell, stored) for cell in cells)
    max_bytes = min(max(largest, SMALLEST_LARGEST_BYTES), LARGEST_BYTES)
    return Sweeps(
        world_sizes=tuple(sorted({cell.world_size for cell in cells})),
        operations=tuple(sorted(wanted)),
        dtypes=("float32",),
        max_bytes=max_bytes,
        sizes=tuple(max_bytes // part for part in reversed(PARTS)),
        repeats=REPEATS,
        hosts=stored.info.spec.virtual_hosts,
    )


def _largest_bytes(cell: Cell, stored: StoredRun) -> int:
    """Return the most that one operation of a cell may carry: all parameters, or one bucket."""
    inspected = stored.results.get(cell.model_copy(update={"purpose": "inspect", "repeat": 0}).id)
    ranks = inspected.ranks if inspected is not None else []
    parameters = max((rank.memory.parameters_bytes or 0 for rank in ranks), default=0)
    bucket_mb = getattr(cell.strategy, "bucket_mb", None)
    return parameters if bucket_mb is None else min(parameters, 2 * int(bucket_mb * 2**20))
