"""What compressed training sent, cost and did to the gradient: one row of the summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from scalebench.attribution import LaunchAttribution, attribute
from scalebench.budget import clean_parts
from scalebench.compression import METHODS, nominal_ratio
from scalebench.costmodel.break_even import break_even_byte_per_s, saved_bytes, sent_bytes
from scalebench.launches import launch_step_s
from scalebench.records import CellResult, CompressionTraffic
from scalebench.row_fields import RowFields
from scalebench.spec import Cell, Compressed
from scalebench.stats import Estimate, estimate_over_launches

BOUND = "bound: nothing is communicated"
"""Stamp of a row that no compression can reach."""

UNSEEN = "communication unseen"
"""Stamp of a row whose collectives the trace does not have, not all of them."""

OF_TORCH = "torch's hook encodes and decodes on threads that the profiler does not see"
NOT_TRACED = "no launch of this row was traced"
NOTHING_ENCODED = "nothing is encoded"

CODEC_TIMES = ("encode_s", "decode_s", "codec_s")
TIMES = (*CODEC_TIMES, "communicate_s", "transfer_s")


@dataclass(frozen=True)
class CodecTimes:
    """Seconds per step, of launches that were traced; means over the ranks.

    Attributes:
        encode_s: Of clean steps: what tracing adds is taken off.
        decode_s: Likewise.
        communicate_s: Union of the collectives, of traced steps.
        transfer_s: The same without the time in which a rank waited for others.
    """

    encode_s: Estimate
    decode_s: Estimate
    codec_s: Estimate
    communicate_s: Estimate
    transfer_s: Estimate


def compression_of_row(
    cell: Cell, inspection: CellResult | None, good: Mapping[int, CellResult]
) -> RowFields:
    """Work out what a row's compression did; other strategies get a reason."""
    row, strategy = RowFields(), cell.strategy
    traffic = next((t for r in good.values() if (t := _traffic_of_rank_0(r)) is not None), None)
    if not isinstance(strategy, Compressed):
        row.set("compression", None, "the strategy does not compress gradients")
        return row
    if strategy.method == "noop":
        row.stamps.append(BOUND)
    if _hidden(strategy) and cell.world_size > 1:
        row.stamps.append(UNSEEN)
    if traffic is None:
        row.set("compression", None, "no launch of this row went well")
        return row
    times, no_times = _times(strategy, good)
    values: dict[str, Any] = {
        "method": strategy.method,
        "settings": strategy.settings,
        "collective": METHODS[strategy.method].collective,
        **_bytes(strategy, traffic, cell.world_size),
        **_gradient_error(inspection),
    }
    reasons: dict[str, str] = {}
    for name in TIMES:
        values[name] = None if times is None else getattr(times, name).model_dump()
        reasons |= {} if times is not None else {name: no_times}
    for name in TIMES if _hidden(strategy) else CODEC_TIMES if _encodes_nothing(strategy) else ():
        values[name] = None
        reasons[name] = OF_TORCH if _hidden(strategy) else NOTHING_ENCODED
    no_codec = reasons.get("codec_s", NOT_TRACED)
    break_even, why = _break_even(values, times, traffic, cell.world_size, no_codec)
    values["break_even_byte_per_s"] = None if break_even is None else break_even.model_dump()
    if break_even is None:
        reasons["break_even_byte_per_s"] = why
    row.values["compression"] = values | {"unavailable": reasons}
    row.values["payload_bytes"] = values["payload_bytes"]
    row.values["wire_bytes"] = values["wire_bytes"]
    return row


def _hidden(strategy: Compressed) -> bool:
    """Tell whether torch's own hook does the work where no trace shows it."""
    return METHODS[strategy.method].of_torch and not _encodes_nothing(strategy)


def _encodes_nothing(strategy: Compressed) -> bool:
    return strategy.method in ("none", "noop")


def _traffic_of_rank_0(result: CellResult) -> CompressionTraffic | None:
    """Return the traffic of rank 0; ranks differ only in what a threshold lets through."""
    return next((rank.compression for rank in result.ranks if rank.rank == 0), None)


def _bytes(
    strategy: Compressed, traffic: CompressionTraffic, world_size: int
) -> dict[str, float | int | None]:
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


def _times(strategy: Compressed, good: Mapping[int, CellResult]) -> tuple[CodecTimes | None, str]:
    launches = [found for result in good.values() if (found := attribute(result)) is not None]
    if not launches:
        return None, NOT_TRACED
    each = [_of_launch(launch) for launch in launches]
    floor = 1e-12  # of a logarithm: a part that was never seen took less than any clock shows
    columns = [estimate_over_launches([max(values[i], floor) for values in each]) for i in range(5)]
    return CodecTimes(*columns), ""


def _of_launch(launch: LaunchAttribution) -> tuple[float, float, float, float, float]:
    """Return the five times of `CodecTimes`, means over a launch's ranks."""
    step_s = launch_step_s(launch.result)
    found: list[Sequence[float]] = []
    for rank, parts in launch.breakdowns.items():
        codec_s = clean_parts(launch, rank, step_s).codec_s
        marked = parts.encode_s + parts.decode_s
        share = parts.encode_s / marked if marked else 0.0
        transfer_s = parts.comm_s - parts.wait_s
        found.append((share * codec_s, (1 - share) * codec_s, codec_s, parts.comm_s, transfer_s))
    encode, decode, codec, communicate, transfer = np.mean(np.array(found), axis=0)
    return float(encode), float(decode), float(codec), float(communicate), float(transfer)


def _break_even(
    values: Mapping[str, Any],
    times: CodecTimes | None,
    traffic: CompressionTraffic,
    world_size: int,
    reason: str,
) -> tuple[Estimate | None, str]:
    if world_size == 1:
        return None, "one rank sends nothing"
    if times is None:
        return None, NOT_TRACED
    if values["codec_s"] is None:
        return None, reason
    saved = saved_bytes(
        traffic.gradient_bytes, traffic.all_reduce_bytes, traffic.all_gather_bytes, world_size
    )
    return break_even_byte_per_s(saved, times.codec_s), ""
