"""The file that nccl-tests writes for ``-J FILE``; it has one table."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Self

from pydantic import (
    AliasPath,
    BaseModel,
    ConfigDict,
    Field,
    FiniteFloat,
    ValidationError,
    model_validator,
)

from scalebench.costmodel.links.nccl_tests.operations import DTYPES
from scalebench.costmodel.links.nccl_tests.run import Point, Rank, Run, points_of
from scalebench.errors import UsageError
from scalebench.records.rows.base import IfValid

MAX_BYTES = 64 * 2**20
"""A sweep has some kilobytes; per-iteration times of thousands of ranks some megabytes."""


_Few = Annotated[int, Field(gt=0, le=1024)]
_Large = Annotated[int, Field(ge=0, lt=2**63)]
_Number = Annotated[float, Field(gt=-1e18, lt=1e18)]


class _Json(BaseModel):
    model_config = ConfigDict(strict=True)


class _Mode(_Json):
    """The result of a mode, under the names that the text has for it."""

    time: _Number | None = None
    cputime: _Number | None = Field(None, validation_alias="cpu_time")
    algbw: _Number = Field(validation_alias="alg_bw")
    busbw: _Number = Field(validation_alias="bus_bw")
    wrong: _Number | None = Field(validation_alias="nwrong")


class _Result(_Json):
    size: _Large
    count: _Large
    type: str
    redop: str
    root: int = Field(strict=False)  # text with blanks before it
    out_of_place: _Mode | None = None
    in_place: _Mode | None = None

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        modes = [mode for mode in (self.out_of_place, self.in_place) if mode]
        if self.type not in DTYPES:
            raise ValueError(f"the type {self.type!r} is not known")
        if not modes or any(mode.time is None and mode.cputime is None for mode in modes):
            raise ValueError("a measurement or its time is missing")
        return self


class _Device(_Json):
    rank: int = Field(ge=0)
    group: IfValid[int] = None


class _File(_Json):
    results: list[_Result] = Field(min_length=1)
    program: IfValid[str] = Field(None, validation_alias=AliasPath("args", 0))
    threads: IfValid[_Few] = Field(None, validation_alias=AliasPath("config", "nthreads"))
    gpus: IfValid[_Few] = Field(None, validation_alias=AliasPath("config", "ngpus"))
    devices: IfValid[list[_Device]] = Field(None, validation_alias=AliasPath("config", "devices"))
    average: IfValid[FiniteFloat] = Field(
        None, validation_alias=AliasPath("average_bus_bandwidth", "bandwidth")
    )
    wrong: IfValid[int] = Field(None, validation_alias=AliasPath("out_of_bounds", "count"))


def read_json(path: Path) -> Run:
    """Return the run of a JSON file.

    Raises:
        UsageError: It is too large, cut off, no JSON, or not of nccl-tests.
    """
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(
            f"{path} is larger than {MAX_BYTES // 2**20} MiB, too large for the JSON file of a "
            "sweep. Give the text log."
        )
    try:
        file = _File.model_validate_json(path.read_text(encoding="utf-8-sig", errors="replace"))
    except ValidationError as error:
        raise _refusal(path, error) from None
    return Run(
        path,
        program=file.program or "",
        ranks_per_process=file.threads * file.gpus if file.threads and file.gpus else None,
        ranks=_ranks(file),
        points=[point for i, result in enumerate(file.results) for point in _points(result, i)],
        has_footer=file.average is not None,
        average_busbw_gb_per_s=file.average,
        num_out_of_bounds=file.wrong,
    )


def _refusal(path: Path, error: ValidationError) -> UsageError:
    first = error.errors()[0]
    if first["type"] == "json_invalid":
        return UsageError(
            f"{path}: the JSON is cut off or damaged ({first['ctx']['error']}). Expected the "
            "whole file that nccl-tests wrote for -J."
        )
    if len(first["loc"]) < 2:
        return UsageError(
            f"{path} is JSON, but not a result of nccl-tests: expected a list results with at "
            "least one entry, as -J writes it."
        )
    where = ".".join([f"results[{first['loc'][1]}]", *map(str, first["loc"][2:])])
    return UsageError(
        f"{path}, {where}: {first['msg']}; expected size, count, type, redop, root, out_of_place "
        "and in_place with time (or cpu_time), alg_bw, bus_bw and nwrong."
    )


def _points(result: _Result, i: int) -> Iterator[Point]:
    columns = {name: str(getattr(result, name)) for name in ("size", "count", "type", "root")}
    columns["redop"] = result.redop
    for in_place, mode in enumerate((result.out_of_place, result.in_place)):
        for name, value in mode or ():
            if value is not None:
                columns[f"{name}{in_place}"] = f"{value:.6f}"  # as many decimals as the file has
    return points_of(columns, f"results[{i}]")


def _ranks(file: _File) -> list[Rank]:
    """Return all ranks; the file lists the first of each process only, unless that is mended."""
    devices, each = file.devices or [], (file.threads or 1) * (file.gpus or 1)
    if any(device.rank % each for device in devices):
        each = 1
    return [Rank(one.rank + i, one.group or 0) for one in devices for i in range(each)]
