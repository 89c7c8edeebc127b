"""What a rank's clean step was made of: its traced steps without what tracing itself added.

How much tracing adds is known: traced steps against the clean ones next to them. Where it adds
depends on the device.

On CPU the host's work is the computation, and the profiler makes every operator longer: what it
adds is taken off computation, encoding and decoding, idle time and bubble in proportion.

On CUDA the profiler makes the host slower at asking for kernels. A kernel takes as long as before;
the gaps between kernels grow. What tracing adds is taken off idle time first (other idle time, then
waiting for the next batch, then the bubble), and only what is left after that off kernels.

Transfer, waiting for other ranks and copies are as long as they were. At last all parts are scaled
to the headline's step. How long a rank waits for its batches is known of every clean step, and
traced ones need not be like them: that is taken from there, and the rest is scaled to the rest.
Where steps differ by design otherwise, and the traced ones are not whole periods, parts are scaled
to the typical step, and what long steps take is left to the residual.
"""

from collections.abc import Mapping

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.timing.steps import launch_step_s

MOST_OF_WORK = 0.5
"""Tracing never makes up more than this of the host's time, or of a GPU's kernels: if traced steps
seem to say so, they were slower than the clean ones next to them for other reasons, which affect
all parts equally. A GPU's gaps may all be due to tracing: nothing else shows how long they were."""

HOST_WORK = ("compute", "codec", "other_idle", "bubble")
"""On CPU: what tracing makes longer. A bubble grows with what other ranks compute."""

GAPS = ("other_idle", "data_stall", "bubble")
"""On CUDA: what tracing makes longer, in the order in which it is taken off."""

KERNELS = ("compute", "codec")

StepParts = Mapping[str, float]
"""What a step of one rank is made of: activity of a part of the budget → seconds.

As far as traced steps tell; see `scalebench.records.rows.budget.Part`. ``compute`` is without
encoding and decoding, ``copies`` are copies alone.
"""


def clean_parts(
    launch: LaunchAttribution, rank: int, step_s: float, apart: bool = True
) -> StepParts:
    """Return what a rank's clean step was made of.

    ``launch`` tells the proportions, what tracing added, and the device; ``step_s`` is the clean
    step of the headline, seconds. Unless transfer and wait are ``apart``, all of it is transfer.
    """
    traced = dict(launch.breakdowns[rank].parts)
    if not apart:
        traced["exposed_transfer"] += traced["wait"]
        traced["wait"] = 0.0
    traced_s = launch.own_traced_step_s(rank)
    added_s = max(traced_s * (1 - 1 / (1 + launch.trace_overhead)), 0.0)
    on_cpu = launch.result.cell.device == "cpu"
    found, removed_s = (off_work if on_cpu else off_gaps)(traced, added_s)
    shown, stall_s = launch.shown_share(rank), launch.stall_s(rank)
    if stall_s is None:
        return _times(found, shown * step_s / (traced_s - removed_s), tuple(found))
    rest_s = traced_s - removed_s - found["data_stall"]
    if not on_cpu:  # the host waits for batches while the GPU still computes
        stall_s = min(stall_s, max(launch_step_s(launch.result) - rest_s, found["data_stall"]))
    stall_s *= step_s / launch_step_s(launch.result)
    others = tuple(name for name in found if name != "data_stall")
    scaled = _times(found, shown * (step_s - stall_s) / rest_s if rest_s > 0 else 0.0, others)
    return {**scaled, "data_stall": stall_s}


def off_work(
    parts: StepParts, added_s: float, names: tuple[str, ...] = HOST_WORK
) -> tuple[StepParts, float]:
    """Take what tracing added off some parts in proportion, at most half of them.

    Returns:
        The parts, and the seconds that were taken off.
    """
    whole_s = sum(parts[name] for name in names)
    removed_s = min(added_s, MOST_OF_WORK * whole_s)
    return _times(parts, 1 - removed_s / whole_s if whole_s > 0 else 1.0, names), removed_s


def off_gaps(parts: StepParts, added_s: float) -> tuple[StepParts, float]:
    """Take what tracing added off idle time, one kind after the other; the rest off kernels.

    Returns:
        The parts, and the seconds that were taken off.
    """
    left_s = added_s
    for name in GAPS:
        taken_s = min(left_s, parts[name])
        parts = {**parts, name: parts[name] - taken_s}
        left_s -= taken_s
    parts, off_kernels_s = off_work(parts, left_s, KERNELS)
    return parts, added_s - left_s + off_kernels_s


def _times(parts: StepParts, factor: float, names: tuple[str, ...]) -> StepParts:
    return {name: part * factor if name in names else part for name, part in parts.items()}
