"""Calibration: time collectives at many sizes and numbers of ranks, and fit what they cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from scalebench import __version__
from scalebench.costmodel.links.nccl_tests import read_log
from scalebench.costmodel.links.profile import (
    CalibratedPoint,
    LinkProfile,
    by_table,
    point_of,
    points_of_log,
    profile_of,
)
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.machine import identity
from scalebench.records.folder import Scratch
from scalebench.spec import Collectives, Device
from scalebench.spec.base import (
    BACKEND,
    EITHER_PLACE,
    AlgorithmName,
    CollectiveName,
    DtypeName,
)
from scalebench.spec.probes import Sweep, Transfer
from scalebench.spec.world import VirtualHosts
from scalebench.units import bytes_

SMALLEST_BYTES = 8
AT_ONCE_BYTES = 1 << 20
MOST_BACK_TO_BACK = 20
LIMIT_S = 900.0


@dataclass(frozen=True)
class Sweeps:
    """What is to be measured.

    Attributes:
        world_sizes: Numbers of ranks, of at least 2 each.
        operations: Of the backend.
        dtypes: Of their elements.
        max_bytes: No size is above this; they go from 8 B by factors of 2.
        algorithms: All-reduces of `scalebench.worker.collectives` to be measured as well.
        repeats: Timings of each size, by turns.
        hosts: Virtual hosts for the ranks; None: the machine as it is.
        pinned: See `scalebench.spec.Job`.
        sizes: Of each operation, instead of those.
        in_place: Whether what can be done in place is timed that way, too.
        time_limit_s: For each number of ranks; see `scalebench.spec.probes.Sweep`.
    """

    world_sizes: tuple[int, ...]
    operations: tuple[CollectiveName, ...]
    dtypes: tuple[DtypeName, ...]
    max_bytes: int
    algorithms: tuple[AlgorithmName, ...] = ()
    repeats: int = 5
    hosts: VirtualHosts | None = None
    pinned: bool = True
    sizes: Mapping[CollectiveName, tuple[int, ...]] = field(default_factory=dict)
    in_place: bool = True
    time_limit_s: float | None = None

    @classmethod
    def of(
        cls,
        asked: Collectives,
        world_sizes: Sequence[int],
        device: Device,
        hosts: VirtualHosts | None,
    ) -> Self:
        """Return what is to be measured for ``asked`` at some numbers of ranks."""
        return cls(
            world_sizes=tuple(world_sizes),
            operations=asked.operations,
            dtypes=asked.dtypes,
            max_bytes=asked.largest(device),
            algorithms=asked.algorithms,
            repeats=asked.repeats,
            hosts=hosts,
        )


def sizes_up_to(max_bytes: int) -> list[int]:
    """Return 8 B and its doubles up to ``max_bytes``."""
    sizes = [SMALLEST_BYTES]
    while sizes[-1] * 2 <= max_bytes:
        sizes.append(sizes[-1] * 2)
    return sizes


def transfers_of(sweeps: Sweeps, device: Device = "cpu") -> tuple[Transfer, ...]:
    """Return every operation at every size; small ones more often in one timing."""
    wanted: list[tuple[CollectiveName, str, bool]]
    wanted = [(op, BACKEND, False) for op in sweeps.operations if op != "barrier"]
    if sweeps.in_place:
        wanted += [(op, BACKEND, True) for op in sweeps.operations if op in EITHER_PLACE]
    wanted += [("all_reduce", algorithm, False) for algorithm in sweeps.algorithms]
    barrier = Transfer(operation="barrier", size_bytes=1, back_to_back=MOST_BACK_TO_BACK)
    return (
        *([barrier] if "barrier" in sweeps.operations else []),
        *(
            Transfer(
                operation=operation,
                size_bytes=size,
                dtype=dtype,
                algorithm=algorithm,
                in_place=in_place,
                back_to_back=_at_once(sweeps, size, device),
            )
            for operation, algorithm, in_place in wanted
            for dtype in sweeps.dtypes
            for size in sweeps.sizes.get(operation) or sizes_up_to(sweeps.max_bytes)
        ),
    )


def _at_once(sweeps: Sweeps, size: int, device: Device) -> int:
    """Return how many operations of a size one timing has; on CPU few where sizes are chosen.

    A GPU times them as a whole, as many as nccl-tests at every size.
    """
    if device == "cuda":
        return MOST_BACK_TO_BACK
    return 2 if sweeps.sizes else min(max(AT_ONCE_BYTES // size, 2), MOST_BACK_TO_BACK)


def calibrate(
    launcher: Launcher,
    sweeps: Sweeps,
    device: Device,
    num_devices: int,
    environment: Mapping[str, Any],
    on_progress: Callable[[str, object], None],
) -> LinkProfile:
    """Measure, fit, and return the profile.

    The launcher is not closed. With more ranks than ``num_devices``, GPUs or cores, several share
    one.

    Raises:
        EnvironmentUnfit: A rank failed, or there can be no virtual hosts here.
    """
    if sweeps.hosts is not None:
        launcher.move_to(sweeps.hosts, max(sweeps.world_sizes))
    with Scratch() as logs:
        try:
            points = measured_points(launcher, sweeps, device, logs, on_progress)
        except ProbeFailed as error:
            raise EnvironmentUnfit(f"Calibrating failed: {error}") from None
    return measured_profile(points, sweeps, device, num_devices, environment)


def measured_profile(
    points: Sequence[CalibratedPoint],
    sweeps: Sweeps,
    device: Device,
    num_devices: int,
    environment: Mapping[str, Any],
) -> LinkProfile:
    """Fit what was measured; arguments as for `calibrate`."""
    shared = None if sweeps.hosts is not None else num_devices
    profile = profile_of(
        points,
        _notices(device, sweeps, shared),
        created=_now(),
        version=__version__,
        machine=identity(environment),
        device=device,
        backend=_backend(device),
        link=_link(sweeps),
    )
    return profile.model_copy(update={"cut_short": cut_short(points, sweeps, device)})


def cut_short(points: Sequence[CalibratedPoint], sweeps: Sweeps, device: Device) -> tuple[str, ...]:
    """Say, for each number of ranks, what the time limit has left out."""
    planned, told = transfers_of(sweeps, device), []
    for world_size in sweeps.world_sizes:
        left_out = []
        for op in sweeps.operations:
            wanted = [transfer.size_bytes for transfer in planned if transfer.operation == op]
            timed = [p.size_bytes for p in points if (p.op, p.world_size) == (op, world_size)]
            if len(timed) < len(wanted):
                left_out.append(f"{op} up to {bytes_(max(timed))} of {bytes_(max(wanted))}")
        if left_out:
            told.append(
                f"Calibrating links at N={world_size} was limited to {sweeps.time_limit_s:g} s: "
                f"timed {', '.join(left_out)}; larger messages are extrapolated"
            )
    return tuple(told)


def measured_points(
    launcher: Launcher,
    sweeps: Sweeps,
    device: Device,
    logs: Path,
    on_progress: Callable[[str, object], None],
) -> list[CalibratedPoint]:
    """Measure every operation at every size and number of ranks.

    Raises:
        ProbeFailed: A rank failed.
    """
    points: list[CalibratedPoint] = []
    for world_size in sweeps.world_sizes:
        on_progress(f"collectives at N={world_size}", None)
        plan = Sweep(
            world_size=world_size,
            device=device,
            backend=_backend(device),
            threads=1,
            pinned=sweeps.pinned,
            virtual_hosts=sweeps.hosts,
            limit_s=LIMIT_S,
            transfers=transfers_of(sweeps, device),
            repeats=sweeps.repeats,
            time_limit_s=sweeps.time_limit_s,
        )
        found = launcher.probe(plan, logs / str(world_size))[0].sweep
        points += [point_of(one, world_size, _link(sweeps)) for one in found]
    return points


def _backend(device: Device) -> str:
    return "nccl" if device == "cuda" else "gloo"


def _link(sweeps: Sweeps) -> str:
    return sweeps.hosts.link if sweeps.hosts else ""


def imported(
    files: Sequence[str | Path], world_size: int | None, operation: str | None = None
) -> LinkProfile:
    """Read logs of nccl-tests, fit their points, and return the profile.

    ``world_size`` and ``operation`` are of logs that do not tell them.

    Raises:
        UsageError: A file is no log of nccl-tests, and the text names it and the line; or none
            has a point that can be used.
    """
    points: list[CalibratedPoint] = []
    notices: list[str] = []
    for file in files:
        of_file, of_log = points_of_log(read_log(file, world_size=world_size, op=operation))
        points += of_file
        notices += of_log
    if not points:
        names = ", ".join(map(str, files))
        raise UsageError(f"Nothing in {names} can be fitted: {'; '.join(dict.fromkeys(notices))}.")
    points, differences = by_table(points)
    notices += differences
    return profile_of(
        points, notices, created=_now(), version=__version__, device="cuda", backend="nccl"
    )


def _notices(device: Device, sweeps: Sweeps, num_devices: int | None) -> list[str]:
    notices = []
    if sweeps.hosts is not None:
        notices.append(f"Virtual hosts on this machine: links {sweeps.hosts.link}")
    if device == "cpu":
        notices.append("CPU ranks over gloo, 1 thread per rank")
    shared = [n for n in sweeps.world_sizes if num_devices is not None and n > num_devices]
    if shared:
        sizes = ", ".join(map(str, shared))
        notices.append(f"oversubscribed at N = {sizes}: only {num_devices} can run at a time")
    return notices


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
