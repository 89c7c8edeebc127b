"""Is my throughput normal? A run next to published or own results.

A CSV file with a header. A line needs ``gpu``, ``gpus``, ``sequence``, the size of its model (one
of ``parameters``, ``parameters_billion`` and ``model``, where ``7b`` counts; or the columns of
`scalebench.search.devices.measured`) and one speed. ``strategy``, ``precision`` and ``source`` are
told. `NAMES` has what published tables call these.
"""

import csv
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from scalebench.errors import UsageError
from scalebench.records.base import Record
from scalebench.records.storage.files import read_text
from scalebench.records.summary import Row, Summary
from scalebench.search.devices.measured import MeasuredRow
from scalebench.search.prediction.speed import short_name
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
