"""What compressed training sent, cost and did to the gradient: one row of the summary."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from scalebench.analysis.attribution import LaunchAttribution, clean_parts
from scalebench.analysis.rows.launches import NO_LAUNCH, Context, Fields, Launches, null
from scalebench.analysis.steps import launch_step_s
from scalebench.costmodel.what_if import break_even_byte_per_s, saved_bytes, sent_bytes
from scalebench.records.measured.rank import CompressionTraffic
from scalebench.records.rows.strategies import CompressionFigures
from scalebench.records.run import CellResult
from scalebench.spec import Compressed
from scalebench.spec.strategies.data_parallel import METHODS, nominal_ratio
from scalebench.stats import Estimate, estimate_over_launches, estimate_signed

BOUND = "bound: nothing is communicated"
"""Stamp of a row that no compression can reach."""

UNSEEN = "communication unseen"
"""Stamp of a row whose collectives the trace does not have, not all of them."""

OF_TORCH = "torch's hook does not mark when it encodes and decodes"
NOT_ALL_SEEN = "the trace does not have all collectives of torch's hook"
NOT_TRACED = "no launch of this row was traced"
NOTHING_ENCODED = "nothing is encoded"

NOT_SEEN = "the traces show no encoding or decoding"
ONE_RANK = "one rank sends nothing"

CODEC_TIMES = ("encode_s", "decode_s", "codec_s")
"""Seconds per clean step, what tracing adds taken off; means over the ranks."""

COMMUNICATION_TIMES = ("communicate_s", "transfer_s")
"""Union of the collectives per traced step; the same without waiting for other ranks."""

TIMES = (*CODEC_TIMES, *COMMUNICATION_TIMES)


def compression_of_row(row: Launches, _: Context) -> Fields:
    """Work out what a row's compression did; other strategies get a reason."""
    cell, strategy = row.cell, row.cell.strategy
    if not isinstance(strategy, Compressed):
        return null(["compression"], "the strategy does not compress gradients")
    stamps = [BOUND] if strategy.method == "noop" else []
    # Ranks differ only in what a threshold lets through.
    of_rank_0 = (one.compression for r in row.good.values() for one in r.ranks if one.rank == 0)
    traffic = next((one for one in of_rank_0 if one is not None), None)
    if traffic is None:
        return null(["compression"], NO_LAUNCH) | {"stamps": stamps}
    times, reasons = _times(strategy, row, traffic)
    break_even = None
    if cell.world_size == 1:
        reasons["break_even_byte_per_s"] = ONE_RANK
    elif "codec_s" in times:
        break_even = _break_even(times["codec_s"], traffic, cell.world_size)
    else:
        reasons["break_even_byte_per_s"] = reasons["codec_s"]
    figures = CompressionFigures(
        method=strategy.method,
        settings=strategy.settings,
        collective=METHODS[strategy.method].collective,
        **_bytes(strategy, traffic, cell.world_size),
        **_gradient_error(row.inspection),
        **{name: times.get(name) for name in TIMES},
        break_even_byte_per_s=break_even,
        unavailable=reasons,
    )
    return {
        "compression": figures,
        "payload_bytes": figures.payload_bytes,
        "wire_bytes": figures.wire_bytes,
        "stamps": stamps if _sees_all(row, traffic) else [*stamps, UNSEEN],
    }


def is_unmarked(strategy: Compressed) -> bool:
    """Tell whether torch's own hook encodes and decodes, and leaves no marks of it in a trace."""
    return METHODS[strategy.method].of_torch and not _encodes_nothing(strategy)


def _sees_all(row: Launches, traffic: CompressionTraffic) -> bool:
    """Tell whether the traces have all bytes that the hook counted.

    Traces of version 0.1 have only some of the collectives that PowerSGD begins in callbacks.
    """
    if row.cell.world_size == 1:
        return True
    handed_over = traffic.all_reduce_bytes + traffic.all_gather_bytes
    seen = (
        launch.payload_bytes(rank) for launch in row.attributed.values() for rank in launch.traces
    )
    return all(num_bytes is not None and num_bytes >= handed_over for num_bytes in seen)


def _encodes_nothing(strategy: Compressed) -> bool:
    return strategy.method in ("none", "noop")


def _bytes(strategy: Compressed, traffic: CompressionTraffic, world_size: int) -> dict[str, Any]:
    payload = traffic.all_reduce_bytes + traffic.all_gather_bytes
    wire = sent_bytes(traffic.all_reduce_bytes, traffic.all_gather_bytes, world_size)
    whole = traffic.gradient_bytes
    return {
        "num_buckets": traffic.num_buckets,
        "gradient_bytes": whole,
        "payload_bytes": payload,
        "wire_bytes": round(wire),
        "payload_ratio": payload / whole if whole else None,
        "nominal_ratio": nominal_ratio(strategy.method, strategy.settings),
    }


def _gradient_error(inspection: CellResult | None) -> dict[str, Any]:
    ranks = inspection.ranks if inspection is not None else []
    error = next((rank.gradient_error for rank in ranks if rank.gradient_error), None)
    return {
        "gradient_error": None if error is None else error.relative_l2,
        "gradient_cosine": None if error is None else error.cosine,
        "gradient_error_step": None if error is None else error.step,
    }


def _times(
    strategy: Compressed, row: Launches, traffic: CompressionTraffic
) -> tuple[dict[str, Estimate], dict[str, str]]:
    """Return the times that are known, and for the others why they are not."""
    if is_unmarked(strategy) and not _sees_all(row, traffic):
        return {}, dict.fromkeys(TIMES, NOT_ALL_SEEN)
    each = [_of_launch(launch) for launch in row.attributed.values()]
    if not each:
        return {}, dict.fromkeys(TIMES, NOT_TRACED)
    times = {name: estimate_signed([found[name] for found in each]) for name in COMMUNICATION_TIMES}
    if _encodes_nothing(strategy):
        return times, dict.fromkeys(CODEC_TIMES, NOTHING_ENCODED)
    if is_unmarked(strategy):
        return times, dict.fromkeys(CODEC_TIMES, OF_TORCH)
    if any(found[name] <= 0 for found in each for name in CODEC_TIMES):
        return times, dict.fromkeys(CODEC_TIMES, NOT_SEEN)
    for name in CODEC_TIMES:
        times[name] = estimate_over_launches([found[name] for found in each])
    return times, {}


def _of_launch(launch: LaunchAttribution) -> dict[str, float]:
    """Return the times of one launch by name, means over its ranks, seconds."""
    step_s = launch_step_s(launch.result)
    found: dict[str, list[float]] = {name: [] for name in TIMES}
    for rank, parts in launch.breakdowns.items():
        codec_s = clean_parts(launch, rank, step_s)["codec"]
        marked = parts.encode_s + parts.decode_s
        encode_s = codec_s * parts.encode_s / marked if marked else 0.0
        of_rank = (encode_s, codec_s - encode_s, codec_s, parts.comm_s, parts.comm_s - parts.wait_s)
        for name, seconds in zip(TIMES, of_rank, strict=True):
            found[name].append(seconds)
    return {name: float(np.mean(seconds)) for name, seconds in found.items()}


def decoding_s(launches: Sequence[LaunchAttribution]) -> float:
    """Return what decoding takes a rank per clean step, mean over launches, seconds."""
    return float(np.mean([_of_launch(launch)["decode_s"] for launch in launches]))


def _break_even(codec_s: Estimate, traffic: CompressionTraffic, world_size: int) -> Estimate:
    saved = saved_bytes(
        traffic.gradient_bytes, traffic.all_reduce_bytes, traffic.all_gather_bytes, world_size
    )
    return break_even_byte_per_s(saved, codec_s)
