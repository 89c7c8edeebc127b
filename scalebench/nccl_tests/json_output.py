"""The file that nccl-tests writes for ``-J FILE``."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError
from scalebench.nccl_tests.assemble import Footer, Told, table_of
from scalebench.nccl_tests.job import Job, Rank, version_of_code
from scalebench.nccl_tests.model import Table
from scalebench.nccl_tests.operations import DTYPES, ops_named_in
from scalebench.nccl_tests.rows import Measured, Printed, Row

MAX_BYTES = 64 * 2**20
"""A sweep has some kilobytes; per-iteration times of thousands of ranks some megabytes."""

_HALF_UNIT = 0.5e-6
"""Numbers are written with six decimals."""

_LARGEST = 2**20
"""Whatever is larger is no number of threads or devices of a process, and no version."""

Json = Mapping[str, Any]


def read_json(path: Path, told: Told) -> Table:
    """Return the table of a JSON file; it has exactly one.

    Raises:
        UsageError: It is too large, cut off, no JSON, or not of nccl-tests.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_BYTES // 2**20} MiB, too large for the JSON file of a "
            "sweep. Give the text log."
        )
    try:
        content = json.loads(path.read_text(encoding="utf-8", errors="replace"))
    except (ValueError, RecursionError) as error:
        where = f", line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        raise UsageError(
            f"{path}{where}: the JSON is cut off or damaged ({error}). Expected the whole file "
            "that nccl-tests wrote for -J."
        ) from None
    results = content.get("results") if isinstance(content, dict) else None
    if not isinstance(results, list) or not results:
        raise UsageError(
            f"{path} is JSON, but not a result of nccl-tests: expected a list results with at "
            "least one entry, as -J writes it."
        )
    return table_of(path, _job(content), _rows(path, results), _footer(content), told)


def _rows(path: Path, results: list[Any]) -> list[Row]:
    rows = []
    for i, result in enumerate(results):
        place = f"results[{i}]"
        try:
            rows.append(_row(result, place))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise UsageError(
                f"{path}, {place}: {what}; expected size, count, type, redop, root, out_of_place "
                "and in_place with time (or cpu_time), alg_bw, bus_bw and nwrong."
            ) from None
    return rows


def _row(result: Json, place: str) -> Row:
    if result["type"] not in DTYPES:
        raise ValueError(f"the type {result['type']!r} is not known")
    dtype, itemsize = DTYPES[result["type"]]
    root = int(result["root"])
    modes = [(mode == "in_place", result.get(mode)) for mode in ("out_of_place", "in_place")]
    measured = tuple(_measured(values, in_place) for in_place, values in modes if values)
    if not measured:
        raise ValueError("no measurement")
    return Row(
        place=place,
        size_bytes=_whole(result["size"]),
        count=_whole(result["count"]),
        dtype=dtype,
        itemsize=itemsize,
        redop=None if result["redop"] in ("none", "") else str(result["redop"]),
        root=None if root < 0 else root,
        measured=measured,
    )


def _measured(values: Json, in_place: bool) -> Measured:
    is_cpu = "cpu_time" in values
    time = _printed(values["cpu_time" if is_cpu else "time"])
    wrong = values["nwrong"]
    return Measured(
        in_place=in_place,
        time_us=None if is_cpu else time,
        cpu_time_us=time if is_cpu else None,
        algbw_gb_per_s=_printed(values["alg_bw"]),
        busbw_gb_per_s=_printed(values["bus_bw"]),
        num_wrong=None if wrong is None else round(_number(wrong)),
        largest_deviation=None,
    )


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ValueError("size or count is no number of bytes or elements")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{value!r} is no finite number")
    return float(value)


def _printed(value: Any) -> Printed:
    number = _number(value)
    return Printed(number, number - _HALF_UNIT, number + _HALF_UNIT)


def _job(content: Json) -> Job:
    config = content.get("config")
    config = config if isinstance(config, dict) else {}
    per_process = _positive(config.get("nthreads")), _positive(config.get("ngpus"))
    job = Job()
    if per_process[0] and per_process[1]:
        job.ranks_per_process = per_process[0] * per_process[1]
    job.ranks = _ranks(config.get("devices"), job.ranks_per_process)
    args = content.get("args")
    ops = ops_named_in(str(args[0])) if isinstance(args, list) and args else set()
    job.op = next(iter(ops)) if len(ops) == 1 else None
    code = _positive(content.get("nccl_version"))
    job.nccl_version = version_of_code(code) if code else None
    return job


def _positive(value: Any) -> int | None:
    return value if type(value) is int and 0 < value < _LARGEST else None


def _ranks(devices: Any, ranks_per_process: int | None) -> list[Rank]:
    """Return all ranks; the file lists the first of each process only, unless that is mended."""
    if not isinstance(devices, list) or not all(isinstance(device, dict) for device in devices):
        return []
    listed = [
        Rank(
            device["rank"],
            device.get("group") or 0,
            str(device.get("hostname")),
            str(device.get("device_info")),
        )
        for device in devices
        if type(device.get("rank")) is int
    ]
    each = ranks_per_process or 1
    if any(rank.rank % each for rank in listed):
        return listed
    return [
        Rank(rank.rank + i, rank.group, rank.host, rank.device)
        for rank in listed
        for i in range(each)
    ]


def _footer(content: Json) -> Footer:
    average, bounds = content.get("average_bus_bandwidth"), content.get("out_of_bounds")
    bandwidth = average.get("bandwidth") if isinstance(average, dict) else None
    count = bounds.get("count") if isinstance(bounds, dict) else None
    return Footer(
        average_busbw_gb_per_s=bandwidth if isinstance(bandwidth, int | float) else None,
        num_out_of_bounds=count if isinstance(count, int) else None,
        is_there=isinstance(average, dict),
    )
