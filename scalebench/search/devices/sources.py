"""Is my throughput normal? A run next to published or own results, and where these are from.

A CSV file with a header. A line needs ``gpu``, ``gpus``, ``sequence``, the size of its model (one
of ``parameters``, ``parameters_billion`` and ``model``, where ``7b`` counts; or the columns of
`scalebench.search.devices.measured`) and one speed. ``strategy``, ``precision`` and ``source`` are
told. `NAMES` has what published tables call these.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field, ValidationError

from scalebench.costmodel.device_peaks import peak_flops
from scalebench.errors import UsageError, unknown_name
from scalebench.records.files import read_text
from scalebench.records.summary import ImportedLog, ImportedRun, Row, Summary
from scalebench.search.devices.measured import (
    NEEDED_COLUMNS,
    MeasuredRow,
    configuration,
    read_rows,
    row_of,
)
from scalebench.search.devices.products import is_trace, products_of_run
from scalebench.search.model import SearchModel
from scalebench.search.prediction.speed import DEVICE_TYPES, device_type, short_name
from scalebench.search.space import DEFAULT_BUCKET_MB, USUAL, Framework
from scalebench.spec.base import Record
from scalebench.stats import Estimate

NAMES = {
    "gpu": ("system",),
    "gpus": ("# gpus", "#-gpus"),
    "sequence": ("seq", "seqlen (t)", "sequence length"),
    "parameters": ("numparams",),
    "parameters_billion": ("parameters (billion)",),
    "layers": ("# layers",),
    "width": ("hidden", "hidden size"),
    "heads": ("attention heads",),
    "batch": ("global batch", "globalbatchsize", "gbs_samples", "gbs"),
    "tokens_per_s_per_gpu": ("tokens_s_gpu", "tok_s_gpu", "throughput (t/s/gpu)",
                             "tokens / sec / gpu"),
    "tokens_per_s": ("tok_s", "throughput (t/s)"),
    "samples_per_s": ("throughput (s/s)",),
    "step_ms": ("iteration time (ms)",),
    "strategy": ("sharding", "sharding strategy"),
    "precision": ("quantization",),
}  # fmt: skip
"""Column → what published tables call it, in lower case."""

NEEDED = {"gpu", "gpus", "sequence"}

LIKE = {"world_size": 1.0, "parameters": 1.25, "sequence": 1.5}
"""How many times as large a row may be, either way, to be compared."""


class Reference(Record):
    """A result.

    Attributes:
        gpu: Short name as ``--gpu-type`` has it, where it is known.
        parameters: Of the model.
        sequence: Tokens of a sample.
    """

    gpu: str = Field(min_length=1)
    gpus: int = Field(ge=1)
    parameters: float = Field(gt=0, allow_inf_nan=False)
    sequence: int = Field(ge=1)
    tokens_per_s_per_gpu: float = Field(gt=0, allow_inf_nan=False)
    strategy: str = ""
    precision: str = ""
    source: str


class AgainstReference(Record):
    """A row of a run, and the result it is compared with.

    Attributes:
        here: The row in the terms of a reference; null: ``reason`` says why there is none.
        part: Its tokens per second and GPU over the reference's; null: nothing is compared.
        reference: The fastest of those that are alike; of none, the nearest one.
        num_alike: Results that are alike.
    """

    suite: str
    case: str
    world_size: int
    here: Reference | None = None
    part: Estimate | None = None
    reference: Reference | None = None
    num_alike: int = 0
    reason: str | None = None


def read_references(path: Path) -> list[Reference]:
    """Return the results of a CSV file; lines that lack what is needed are left out.

    A job that failed has no speed.

    Raises:
        UsageError: It cannot be read, or lacks a column; the text names it.
    """
    called = {other: name for name, others in NAMES.items() for other in others}
    try:
        table = csv.reader(read_text(path).splitlines())
        header = [called.get(n, n) for n in (cell.strip().lower() for cell in next(table, []))]
        lines = [{n: v for n, v in zip(header, line, strict=False) if v.strip()} for line in table]
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table: {error}.") from error
    missing = ", ".join(sorted(NEEDED - {*header}))
    if missing:
        raise UsageError(f"{path} lacks {missing}. docs/gpus.md has the columns of a reference.")
    found = []
    for number, line in enumerate(lines, 2):
        try:
            size = _parameters(line)
            if size is None or not SPEEDS & line.keys() or not line.keys() >= NEEDED:
                continue
            known: dict[str, Any] = {"source": path.name} | line
            known |= {"gpu": short_name(line["gpu"]), "parameters": size}
            known["tokens_per_s_per_gpu"] = 1.0
            one = Reference.model_validate(known)
            speed = _speed(line, one)
            found.append(Reference.model_validate(known | {"tokens_per_s_per_gpu": speed}))
        except ValidationError as error:
            first = error.errors()[0]
            name = str(first["loc"][0])
            told = f"{name} = {line.get(name, '')!r}: {first['msg']}"
            raise UsageError(f"{path}, line {number}: {told}. Correct the line.") from error
        except ValueError as error:
            raise UsageError(f"{path}, line {number}: {error}. Correct the line.") from error
    if not found:
        raise UsageError(
            f"{path} has no line with the size of a model (parameters, or model: 7b) and a speed "
            "(tokens_per_s_per_gpu, tokens_per_s, samples_per_s, step_s, step_ms). docs/gpus.md "
            "has the columns."
        )
    return found


def _speed(line: Mapping[str, str], of: Reference) -> float:
    """Return tokens per second and GPU of a line that has a speed."""
    per_gpu = of.sequence / of.gpus
    if "tokens_per_s_per_gpu" in line:
        return float(line["tokens_per_s_per_gpu"])
    if "tokens_per_s" in line:
        return float(line["tokens_per_s"]) / of.gpus
    if "samples_per_s" in line:
        return float(line["samples_per_s"]) * per_gpu
    if "batch" not in line:
        raise ValueError("the speed of a step needs batch, the samples of the whole job")
    name = "step_s" if "step_s" in line else "step_ms"
    step_s = float(line[name]) / (1e3 if name == "step_ms" else 1)
    return float(line["batch"]) * per_gpu / step_s if step_s > 0 else 0.0


SPEEDS = {"tokens_per_s_per_gpu", "tokens_per_s", "samples_per_s", "step_s", "step_ms"}


def _parameters(line: Mapping[str, str]) -> float | None:
    """Return the parameters of a line's model; None: it does not tell them."""
    if "parameters" in line:
        return float(line["parameters"])
    if "parameters_billion" in line:
        return 1e9 * float(line["parameters_billion"])
    told = re.search(r"(\d+(?:\.\d+)?)\s?([bm])(?![a-z])", line.get("model", "").lower())
    if told:
        return float(told[1]) * {"b": 1e9, "m": 1e6}[told[2]]
    shape = {name: line[name] for name in MeasuredRow.model_fields if name in line}
    if not {"layers", "width", "heads", "batch"} <= shape.keys():
        return None
    return MeasuredRow.model_validate(shape | {"gpu": "", "step_s": 1.0}).model.num_parameters


def compare(summary: Summary, references: Sequence[Reference]) -> list[AgainstReference]:
    """Compare every row that was measured with the results that are alike."""
    devices = summary.environment.get("devices") or [{}]
    name = short_name(str(devices[0].get("name", "unknown")))
    return [_held(row, name, references) for row in summary.rows if row.status == "ok"]


def _held(row: Row, device: str, references: Sequence[Reference]) -> AgainstReference:
    place = {"suite": row.suite, "case": row.case, "world_size": row.world_size}
    if row.tokens_per_s is None or row.throughput is None or row.num_parameters is None:
        why = row.unavailable.get("tokens_per_s") or "its tokens or parameters are not known"
        return AgainstReference(**place, reason=why)
    per_gpu = row.tokens_per_s.scaled(1 / row.world_size)
    here = Reference(
        gpu=device if row.device == "cuda" else "cpu",
        gpus=row.world_size,
        parameters=row.num_parameters,
        sequence=round(row.tokens_per_s.value / row.throughput.value),
        tokens_per_s_per_gpu=per_gpu.value,
        source="this run",
    )
    alike = [one for one in references if _is_like(here, one)]
    if not alike:
        nearest = min(references, key=lambda one: _distance(here, one))
        return AgainstReference(**place, here=here, reference=nearest, reason="none is alike")
    best = max(alike, key=lambda one: one.tokens_per_s_per_gpu)
    part = per_gpu.scaled(1 / best.tokens_per_s_per_gpu)
    return AgainstReference(**place, here=here, part=part, reference=best, num_alike=len(alike))


def _apart(here: Reference, other: Reference) -> dict[str, float]:
    """Return how many times as large one of two is, at least 1, in what `LIKE` names."""
    pairs = {
        "world_size": (here.gpus, other.gpus),
        "parameters": (here.parameters, other.parameters),
        "sequence": (here.sequence, other.sequence),
    }
    return {name: max(a / b, b / a) for name, (a, b) in pairs.items()}


def _is_like(here: Reference, other: Reference) -> bool:
    apart = _apart(here, other)
    return here.gpu == other.gpu and all(apart[name] <= most for name, most in LIKE.items())


def _distance(here: Reference, other: Reference) -> tuple[bool, float]:
    return here.gpu != other.gpu, sum(math.log(times) for times in _apart(here, other).values())


@dataclass(frozen=True)
class LogColumns:
    """What a user says of rows that were read from logs; a log itself counts first.

    Attributes:
        columns: Column → value, as text.
        model: That was trained; None: not said.
        framework: Its options.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    model: SearchModel | None = None
    framework: Framework = USUAL


def measured_rows(path: Path, gpu: str, logs: LogColumns | None = None) -> list[MeasuredRow]:
    """Return the rows of a CSV file or a run folder; a trace of a GPU has none.

    Args:
        path: Of either.
        gpu: Device of rows that name none.
        logs: Of a run that was read from logs: what these do not say.

    Raises:
        UsageError: There are none, or one cannot be; the text says why.
    """
    logs = logs or LogColumns()
    rows: list[MeasuredRow] = []
    if not is_trace(path):
        rows = _rows_of_run(path, gpu, logs) if path.is_dir() else read_rows(path)
    if logs.columns and not (path / "imported.json").exists():
        given = ", ".join(logs.columns)
        raise UsageError(f"{path} has its own columns. Leave out what stands behind it: {given}.")
    if not (rows or path.is_dir() or is_trace(path)):
        raise UsageError(f"{path} has no measured row. Give a CSV file or a run on GPUs.")
    first, word = (1, "row") if path.is_dir() else (2, "line")
    _refuse_contradictions(path, rows, first, word)
    for number, row in enumerate(rows, first):
        device = device_type(row.gpu or gpu)
        peak = peak_flops(device.name, "bfloat16") or peak_flops(device.name, "float16")
        assert peak is not None, "every device type has one"
        part = row.model.flops_per_sample * row.batch / row.gpus / row.step_s / peak
        if not 5e-4 < part < {"fp8": 2.0, "fp4": 6.0}.get(row.matrices, 1.0):
            raise UsageError(
                f"{path}, {word} {number}: {row.step_s:g} s a step would be {100 * part:.2g} % of "
                f"the published peak. Is it in another unit, or its model another?"
            )
        if row.memory_gb * 1e9 > 1.1 * device.memory_bytes:
            raise UsageError(
                f"{path}, {word} {number}: memory_gb {row.memory_gb:g} is more than the "
                f"{device.memory_bytes / 1e9:g} GB of {device.name}. Give it in 10^9 bytes."
            )
    return rows


def _rows_of_run(path: Path, gpu: str, logs: LogColumns) -> list[MeasuredRow]:
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise

    run = load_run(path)
    if run.imported is not None:
        return _rows_of_logs(path, run.imported, gpu, logs)
    if run.info.spec.device != "cuda":
        raise UsageError(
            f"{path} was measured on {run.info.spec.device}: give a run on GPUs, or a CSV file."
        )
    devices = run.info.environment.get("devices") or [{}]
    found = rows_of_summary(summarise(run), _short_name(str(devices[0].get("name", "")), gpu))
    if not found and not products_of_run(run):
        raise UsageError(
            f"{path} has no row in 16 bits of a built-in transformer. Measure one: scalebench run "
            "ddp --workload gpt-124m --dtype bfloat16."
        )
    return found


def _short_name(name: str, gpu: str) -> str:
    """Return a device as ``--gpu-type`` has it, ``gpu`` where several fit; empty: none does."""
    fits = [short for short, known in DEVICE_TYPES.items() if known.name in name]
    words = re.findall(r"[a-z0-9]+", name.lower())
    fits = fits or [short for short in DEVICE_TYPES if short.split("-")[0] in words]
    return gpu if gpu in fits else next(iter(fits), "")


EXACT = ("layers", "width", "heads", "experts")
OF_LOGS = (*NEEDED_COLUMNS[1:], "tensor", "pipeline", "zero", "microbatch")
"""What has to be said of a row: by a log, or by the user."""


def _rows_of_logs(path: Path, run: ImportedRun, gpu: str, logs: LogColumns) -> list[MeasuredRow]:
    """Return a row of each log.

    Raises:
        UsageError: The logs and the user do not say all, or say different things.
    """
    for name in logs.columns:
        if name not in MeasuredRow.model_fields or name in ("gpu", "gpus", "step_s"):
            allowed = [n for n in MeasuredRow.model_fields if n not in ("gpu", "gpus", "step_s")]
            raise unknown_name("column of --measured", name, allowed)
    rows = []
    for log in run.logs:
        said = _said_of(log, gpu)
        shape = {} if logs.model is None else _shape_of(logs.model)
        if any(said.get(name, value) != value for name, value in shape.items() if name in EXACT):
            shape = {}  # another model is searched than that of the logs
        for name, value in logs.columns.items():
            if str(said.get(name, value)) != value:
                raise UsageError(
                    f"{path}: {log.name} says {name} {said[name]}, and {name}={value} was given."
                )
        row = {**dict(logs.framework), **shape, **logs.columns, **said}
        lacks = [name for name in OF_LOGS if name not in row]
        if lacks:
            raise UsageError(
                f"{path}: {log.name} does not say {', '.join(lacks)}. Add what was trained: "
                f"--measured {path}:{','.join(f'{name}=…' for name in lacks)}; --workload gives "
                "the shape of a model."
            )
        try:
            rows.append(row_of(row))
            assert rows[-1].choice
        except ValueError as error:
            first = error.errors()[0]["msg"] if isinstance(error, ValidationError) else error
            raise UsageError(f"{path}, {log.name}: {first}.") from error
    return rows


def _shape_of(model: SearchModel) -> dict[str, Any]:
    names = ("layers", "width", "heads", "vocabulary", "kv_heads", "inner", "gated", "tied",
             "experts", "top_k")  # fmt: skip
    return {name: getattr(model, name) for name in names}


def _said_of(log: ImportedLog, gpu: str) -> dict[str, object]:
    """Return what a log says of its row, as columns."""
    names = {"hidden": "width", "seq": "sequence", "global_batch": "batch"}
    numbers = {**log.model, "seq": log.seq, "global_batch": log.global_batch}
    said: dict[str, object] = {
        names.get(name, name): round(value)
        for name, value in numbers.items()
        if isinstance(value, float) and names.get(name, name) in MeasuredRow.model_fields
    }
    if log.gpu and not _short_name(log.gpu, gpu):
        raise UsageError(
            f"{log.name} is of {log.gpu}, whose data sheet is not known. Known: "
            f"{', '.join(DEVICE_TYPES)}."
        )
    said |= {"gpu": _short_name(log.gpu, gpu), "gpus": log.world_size}
    if log.step_s:
        said["step_s"] = float(np.average(log.step_s, weights=log.counts))
    elif log.tokens_per_s or log.samples_per_s:
        name = "tokens_per_s" if log.tokens_per_s else "samples_per_s"
        said[name] = getattr(log, name)
    else:
        raise UsageError(f"{log.name} has no step: {log.no_steps}.")
    return said


def rows_of_summary(summary: Summary, gpu: str) -> list[MeasuredRow]:
    """Return the rows that the search knows: transformers in 16 bits, with the usual buckets."""
    from scalebench.search.scores import choice_of_row, is_scored, model_of

    found = []
    for row in summary.rows:
        model, choice = model_of(row.workload), choice_of_row(row)
        if not is_scored(row) or row.step_s is None or model is None or isinstance(choice, str):
            continue
        if choice.precision != "bfloat16" or choice.bucket_mb != DEFAULT_BUCKET_MB:
            continue
        names = ("tensor", "context", "pipeline", "expert", "zero", "chunks", "checkpointing",
                 "precision", "context_method")  # fmt: skip
        given = {name: getattr(choice, name) for name in names}
        if choice.pipeline > 1:
            given["schedule"] = choice.schedule
        replicas = choice.data * choice.shard * choice.expert
        found.append(
            MeasuredRow(
                **_shape_of(model),
                **given,
                gpu=gpu,
                launch="compiled" if row.strategy_settings.get("compile") else "eager",
                gpus=row.world_size,
                sequence=model.context,
                batch=row.global_batch,
                microbatch=row.global_batch // replicas // choice.microbatches,
                shard=choice.shard,
                gathered_bytes=4,
                step_s=row.step_s.value,
                memory_gb=(row.peak_memory_bytes or 0) / 1e9,
            )
        )
    return found


APART = 1.25
"""Rows of one configuration that differ by more contradict one another: steps of a quiet cluster
differ by a few percent from one job to the next."""


def _refuse_contradictions(path: Path, rows: Sequence[MeasuredRow], first: int, word: str) -> None:
    seen: dict[str, tuple[int, float]] = {}
    for number, row in enumerate(rows, first):
        line, step_s = seen.setdefault(configuration(row), (number, row.step_s))
        times = max(row.step_s / step_s, step_s / row.step_s)
        if times > APART:
            raise UsageError(
                f"{path}, {word}s {line} and {number}: one configuration takes {step_s:.3g} and "
                f"{row.step_s:.3g} s a step. Remove the wrong row, or measure it again."
            )
