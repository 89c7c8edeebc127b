"""The calibration that a run makes of its own links: what its predictions rest on.

Only the operations that the run's strategies use, and only sizes such as they send.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from scalebench import machine
from scalebench.analysis.rows.at_one_rank import prediction_base
from scalebench.analysis.rows.axes import predicted_operations
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.group_steps import group_operations, model_of_workload
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.errors import UsageError
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.records.files import read_model, write_checked
from scalebench.records.run import CellResult
from scalebench.session.calibration.sweeps import Sweeps, measured_points, measured_profile
from scalebench.spec import Cell, Collectives, Device, Grouped, Script
from scalebench.spec.base import COLLECTIVES, CollectiveName

PARTS = (1, 2, 4, 16, 64)
"""The largest message and these parts of it: more would keep a slow link busy for long."""

REPEATS: dict[Device, int] = {"cpu": 2, "cuda": 5}
"""Timings of each size; a GPU's has one number for all of its operations."""
SMALLEST_LARGEST_BYTES = 2**16
LARGEST_BYTES = 2**28
LONGEST_S = 30.0
"""At each number of ranks: on slow links, large messages are timed once, or extrapolated."""


def read_profile(path: Path) -> LinkProfile:
    """Read a link profile that a user gives.

    Raises:
        UsageError: It is none, or it holds no fit.
    """
    profile = read_model(path, LinkProfile)
    if not profile.fits:
        raise UsageError(f"{path} contains no fit: calibrate at least 3 sizes at 2 ranks or more.")
    return profile


def about_profile(given: LinkProfile | None, different: Sequence[str]) -> list[str]:
    """Say what a reader has to know of a profile that was given."""
    if given is None:
        return []
    if not given.machine:
        where = "of a machine that the profile does not name"
    elif different:
        where = f"of another machine (other {', '.join(different)})"
    else:
        where = "of this machine"
    return [f"Predictions use a link profile of {given.created[:10]}, {where}"]


def calibrate_run(
    launcher: Launcher, stored: StoredRun, on_progress: Callable[[str, object], None]
) -> None:
    """Measure what the run's predictions need, fit it, and keep it in the run's folder.

    A suite of collectives is measured here, too. A calibration that fails costs the predictions,
    and that suite, and nothing else; the run says why there are none.
    """
    cells = [c for c in stored.info.plan if c.purpose == "measure" and _is_predicted(c)]
    asked = [s.collectives for s in stored.info.spec.suites if s.collectives is not None]
    if not cells and not asked:
        return
    try:
        sweeps = _asked_sweeps(asked, cells, stored) if asked else _sweeps(cells, stored)
    except ProbeFailed as error:
        stored.link_unavailable = f"calibrating the links failed: {error}"
        return
    _calibrate(launcher, stored, sweeps, on_progress)


def _calibrate(
    launcher: Launcher,
    stored: StoredRun,
    sweeps: Sweeps,
    on_progress: Callable[[str, object], None],
) -> None:
    """Measure and fit, and keep the profile in the run's folder, or the reason for having none."""
    spec, environment = stored.info.spec, stored.info.environment
    num_devices = len(environment["devices"]) if spec.device == "cuda" else machine.num_cores()
    try:
        points = measured_points(
            launcher, sweeps, spec.device, stored.paths.logs("calibration"), on_progress
        )
    except ProbeFailed as error:
        stored.link_unavailable = f"calibrating the links failed: {error}"
        return
    stored.link = measured_profile(points, sweeps, spec.device, num_devices, environment)
    write_checked(stored.paths.link_profile, stored.link)


def calibrate_scripts(
    launcher: Launcher, stored: StoredRun, on_progress: Callable[[str, object], None]
) -> None:
    """Measure what the predictions of users' own scripts need, once they have run on one rank.

    What a script sends is not known before: it is read where its predictions start, see
    `prediction_base`.
    """
    cells = [c for c in stored.info.plan if isinstance(c.strategy, Script) and c.steps.trace]
    sizes = tuple(
        sorted({c.world_size for c in cells if c.world_size > 1 and c.skip_reason is None})
    )
    table = grouped(stored)
    rows = [row for row in table.values() if isinstance(row.cell.strategy, Script)]
    bases = [base for row in rows if (base := prediction_base(row, table)) is not None]
    starts = {base.cell.row_key for base in bases}
    sent = [op for cell in cells if cell.row_key in starts for op in _sent(cell, stored)]
    largest = {op: max(size for kind, size in sent if kind == op) for op in _kinds(sent)}
    if (
        not sizes
        or not largest
        or (stored.info.spec.device == "cuda" and any(_lacks_gpus(n, stored) for n in sizes))
    ):
        return
    _calibrate(launcher, stored, _sweeps_of(sizes, largest, stored), on_progress)


def _kinds(sent: Iterable[tuple[str, int]]) -> list[CollectiveName]:
    known = {kind for kind, _ in sent}
    return [op for op in COLLECTIVES if op in known]


def _sent(cell: Cell, stored: StoredRun) -> list[tuple[str, int]]:
    """Return kind and size of the operations that a script's traced steps asked for."""
    result = stored.results.get(cell.id)
    traces = [rank.trace for rank in result.ranks if rank.trace] if result is not None else []
    return [(op.kind, op.num_bytes) for trace in traces for op in trace.operations if op.num_bytes]


def _asked_sweeps(asked: Sequence[Collectives], cells: Iterable[Cell], stored: StoredRun) -> Sweeps:
    """Return what suites of collectives ask for, and what predictions need."""
    spec = stored.info.spec
    sizes = tuple(n for n in spec.world_sizes if n > 1 and not _lacks_gpus(n, stored))
    if not sizes:
        few = len(stored.info.environment["devices"])
        raise ProbeFailed(f"collectives need as many GPUs as ranks, and there are {few}")
    wanted = {op for one in asked for op in one.operations}
    wanted |= {op for cell in cells for op in cell.strategy.operations}
    largest = [one.largest(spec.device) for one in asked]
    return Sweeps(
        world_sizes=sizes,
        operations=tuple(op for op in COLLECTIVES if op in wanted),
        dtypes=tuple(dict.fromkeys(dtype for one in asked for dtype in one.dtypes)),
        max_bytes=max(largest),
        algorithms=tuple(dict.fromkeys(name for one in asked for name in one.algorithms)),
        repeats=max(one.repeats for one in asked),
        hosts=spec.virtual_hosts,
        pinned=spec.pinned,
    )


def _lacks_gpus(world_size: int, stored: StoredRun) -> bool:
    """Tell whether NCCL's ranks would have to share a GPU, which it refuses."""
    devices = stored.info.environment["devices"]
    return stored.info.spec.device == "cuda" and world_size > len(devices)


def _is_predicted(cell: Cell) -> bool:
    """Tell whether a row is predicted: not where its steps are not traced."""
    several = cell.world_size > 1 and cell.skip_reason is None
    shared_gpu = cell.device == "cuda" and cell.oversubscribed
    return several and not shared_gpu and cell.steps.trace and bool(cell.strategy.operations)


def _sweeps(cells: Iterable[Cell], stored: StoredRun) -> Sweeps:
    cells = list(cells)
    largest: dict[CollectiveName, int] = {}
    for cell in cells:
        for op in cell.strategy.operations:
            largest[op] = max(largest.get(op, 0), _largest_bytes(cell, op, stored))
    return _sweeps_of(tuple(sorted({cell.world_size for cell in cells})), largest, stored)


def _sweeps_of(
    world_sizes: tuple[int, ...], largest: Mapping[CollectiveName, int], stored: StoredRun
) -> Sweeps:
    """Return the sweeps up to the largest message of each operation, bytes."""
    up_to = {
        op: min(max(size, SMALLEST_LARGEST_BYTES), LARGEST_BYTES) for op, size in largest.items()
    }
    return Sweeps(
        world_sizes=world_sizes,
        operations=tuple(op for op in COLLECTIVES if op in up_to),
        dtypes=("float32",),
        max_bytes=max(up_to.values()),
        sizes={op: tuple(size // part for part in reversed(PARTS)) for op, size in up_to.items()},
        in_place=False,  # no prediction asks for it
        repeats=REPEATS[stored.info.spec.device],
        hosts=stored.info.spec.virtual_hosts,
        pinned=stored.info.spec.pinned,
        time_limit_s=LONGEST_S,
    )


def _largest_bytes(cell: Cell, op: CollectiveName, stored: StoredRun) -> int:
    """Return the most that one such operation of a cell may carry: all parameters, or one bucket.

    Of a group whose operations carry activations, what the law says of a built-in model, or of
    what the inspected steps have shown of any other.
    """
    inspected = stored.results.get(cell.model_copy(update={"purpose": "inspect", "repeat": 0}).id)
    ranks = inspected.ranks if inspected is not None else []
    if isinstance(cell.strategy, Grouped):
        sent = _sent_by_group(cell, cell.strategy, inspected)
        if sent:
            return max([size for kind, size in sent if kind == op] or [size for _, size in sent])
    parameters = max((rank.memory.parameters_bytes or 0 for rank in ranks), default=0)
    bucket_mb = getattr(cell.strategy, "bucket_mb", None)
    return parameters if bucket_mb is None else min(parameters, 2 * int(bucket_mb * 2**20))


def _sent_by_group(
    cell: Cell, strategy: Grouped, inspected: CellResult | None
) -> list[tuple[str, int]]:
    """Return kind and size of what ranks of a group send in a step; empty: no law tells."""
    model = model_of_workload(strategy, cell.workload, cell.rank_batch)
    if model is not None:
        plain = strategy.model_copy(update={"autocast": False, "checkpointing": False})
        operations = group_operations(plain, model, cell.world_size, cell.rank_batch)
        return [(op.op, op.num_bytes) for op in operations]
    if inspected is None:
        return []
    every = (predicted_operations(inspected, rank) for rank in range(len(inspected.ranks)))
    return [(op.op, op.num_bytes) for operations in every for op in operations]
