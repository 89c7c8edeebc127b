"""Rows that somebody measured, as a CSV file has them, and the jobs that the search makes of them.

A row has ``gpus``, ``layers``, ``width``, ``heads``, ``sequence``, ``batch`` and one of ``step_s``,
``tokens_per_s``, ``tokens_per_s_per_gpu`` and ``samples_per_s``. All other columns are the fields
of `MeasuredRow`; one that is missing or empty has its default.
"""

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from pydantic import Field, ValidationError

from scalebench.costmodel.device_peaks import peak_flops
from scalebench.errors import UsageError
from scalebench.records.files import read_text
from scalebench.records.summary import Summary
from scalebench.search.choice import Choice, columns_of
from scalebench.search.job import Framework, Job
from scalebench.search.model import Models, SearchModel
from scalebench.search.space import DEFAULT_BUCKET_MB, Candidates, Floats, Ints
from scalebench.search.speed import DEVICE_TYPES, device_type

NEEDED = ("gpus", "layers", "width", "heads", "sequence", "batch")
SPEEDS = ("step_s", "tokens_per_s", "tokens_per_s_per_gpu", "samples_per_s")


class MeasuredRow(Framework):
    """One configuration that was trained, and its step.

    Attributes:
        gpu: As ``--gpu-type`` has it; empty: that of the search.
        gpus: Ranks.
        width: Of the residual stream.
        sequence: Tokens of a sample.
        batch: Global batch, samples.
        microbatch: Samples of a microbatch; 0: the rank's whole batch.
        kv_heads: Of keys and values; 0: all heads.
        inner: Width inside the MLP; 0: four times ``width``.
        gated: The MLP has a third matrix.
        tied: The output matrix is the embedding.
        shard: Ranks that divide the state; 0: all replicas from ZeRO-1 on.
        gathered_bytes: Of a parameter that a sharded strategy gathers.
        memory_gb: Peak of a rank, 10^9 bytes; 0: not measured.
        memory_stage: Of a pipeline that has this peak: the ``fullest`` or the ``first``.
    """

    gpu: str = ""
    gpus: int = Field(ge=1)
    layers: int = Field(ge=1)
    width: int = Field(ge=1)
    heads: int = Field(ge=1)
    sequence: int = Field(ge=1)
    batch: int = Field(ge=1)
    step_s: float = Field(gt=0, allow_inf_nan=False)
    microbatch: int = 0
    vocabulary: int = 51200
    kv_heads: int = 0
    inner: int = 0
    gated: bool = False
    tied: bool = True
    experts: int = 1
    top_k: int = 1
    tensor: int = 1
    context: int = 1
    pipeline: int = 1
    expert: int = 1
    shard: int = 0
    zero: int = Field(0, ge=0, le=3)
    schedule: Literal["gpipe", "1f1b", "interleaved-1f1b", "looped-bfs", "zero-bubble"] = "1f1b"
    chunks: int = 1
    context_method: Literal["ulysses", "ring"] = "ring"
    checkpointing: Literal["none", "selective", "full"] = "none"
    precision: Literal["bfloat16"] = "bfloat16"
    gathered_bytes: int = 2
    memory_gb: float = 0.0
    memory_stage: Literal["fullest", "first"] = "fullest"

    @property
    def model(self) -> SearchModel:
        """What was trained."""
        return SearchModel(
            name="measured",
            layers=self.layers,
            heads=self.heads,
            width=self.width,
            context=self.sequence,
            vocabulary=self.vocabulary,
            kv_heads=self.kv_heads or self.heads,
            inner=self.inner or 4 * self.width,
            gated=self.gated,
            tied=self.tied,
            experts=self.experts,
            top_k=self.top_k,
        )

    @property
    def choice(self) -> Choice:
        """How it was divided.

        Raises:
            ValueError: The ranks or the batch do not divide so.
        """
        groups = self.tensor * self.context * self.pipeline
        replicas, left = divmod(self.gpus, groups)
        shard = 1 if self.zero == 0 else self.shard or replicas // self.expert
        batch = self.batch // max(replicas, 1)
        cuts, rest = divmod(batch, self.microbatch or batch or 1)
        if self.pipeline * self.chunks > self.layers:
            raise ValueError(f"{self.layers} layers are fewer than its stages")
        if left or replicas % (shard * self.expert) or self.batch % replicas or rest or not cuts:
            raise ValueError(
                f"{self.gpus} gpus and a batch of {self.batch} do not divide into tensor "
                f"{self.tensor}, context {self.context}, pipeline {self.pipeline}, shard {shard} "
                f"and microbatches of {self.microbatch or batch}"
            )
        return Choice(
            data=replicas // (shard * self.expert),
            shard=shard,
            expert=self.expert,
            context=self.context,
            tensor=self.tensor,
            pipeline=self.pipeline,
            zero=self.zero if shard > 1 else 0,
            schedule=self.schedule if self.pipeline > 1 else "none",
            chunks=self.chunks,
            microbatches=cuts,
            context_method=self.context_method,
            checkpointing=self.checkpointing,
            precision=self.precision,
        )

    @property
    def framework(self) -> Framework:
        """Its options alone."""
        return Framework(**{name: getattr(self, name) for name in Framework.model_fields})


def read_rows(path: Path) -> list[MeasuredRow]:
    """Return the rows of a CSV file.

    Raises:
        UsageError: A column is missing or unknown, or a row cannot be; the text names it.
    """
    try:
        table = csv.DictReader(read_text(path).splitlines())
        lines, names = list(table), set(table.fieldnames or ())
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table: {error}.") from error
    missing = [name for name in NEEDED if name not in names]
    if missing or not names & set(SPEEDS):
        lacks = ", ".join(missing) or f"a speed (one of {', '.join(SPEEDS)})"
        raise UsageError(f"{path} lacks {lacks}. See docs/predictions.md for the columns.")
    unknown = sorted(str(n) for n in names - set(MeasuredRow.model_fields) - set(SPEEDS))
    if unknown:
        raise UsageError(f"{path} has unknown columns: {', '.join(unknown)}. Leave them out.")
    return [_row(path, number, line) for number, line in enumerate(lines, 2)]


def _row(path: Path, number: int, line: Mapping[str, str]) -> MeasuredRow:
    try:
        row = row_of({name: value for name, value in line.items() if value not in ("", None)})
        assert row.choice
    except ValidationError as error:
        first = error.errors()[0]
        told = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise UsageError(f"{path}, line {number}: {told}. Correct the row.") from error
    except ValueError as error:
        raise UsageError(f"{path}, line {number}: {error}. Correct the row.") from error
    return row


def row_of(given: Mapping[str, Any]) -> MeasuredRow:
    """Return a row of named values, one of which tells its speed.

    Raises:
        ValueError: None or several do, in units of their own.
    """
    told = [name for name in SPEEDS if name in given]
    if len(told) != 1:
        raise ValueError(f"it has {' and '.join(told) or 'no speed'}: give one of {SPEEDS}")
    rest = {name: value for name, value in given.items() if name not in SPEEDS}
    row = MeasuredRow(**rest, step_s=float(given[told[0]]))
    per_step = {
        "tokens_per_s": row.batch * row.sequence,
        "tokens_per_s_per_gpu": row.batch * row.sequence / row.gpus,
        "samples_per_s": row.batch,
    }
    return row.model_copy(update={"step_s": per_step.get(told[0], row.step_s**2) / row.step_s})


@dataclass(frozen=True)
class Group:
    """Rows of equal devices and options as columns.

    Attributes:
        places: Of its rows among all.
        models: One a row.
        batch: Global batch of each.
        of: Their configurations.
    """

    gpu: str
    framework: Framework
    gathered_bytes: int
    places: Ints
    models: Models
    batch: Ints
    of: Candidates

    def job(self, start: Job) -> Job:
        """Return the job of these rows, with the speed and links of another."""
        made = cast(Any, {"model": self.models, "batch": self.batch})
        made |= {"framework": self.framework, "gathered_bytes_each": self.gathered_bytes}
        return replace(start, **made)


def grouped(
    rows: Sequence[MeasuredRow], gpu: str, ranks_per_node: Callable[[str], int]
) -> list[Group]:
    """Return rows by device and options.

    Args:
        rows: That were measured.
        gpu: Of rows that name none.
        ranks_per_node: Device → ranks of its machines.
    """
    keys = [(row.gpu or gpu, row.framework, row.gathered_bytes) for row in rows]
    found = []
    for key in dict.fromkeys(keys):
        places = np.array([i for i, other in enumerate(keys) if other == key])
        mine = [rows[i] for i in places]
        made = columns_of([row.choice for row in mine], ranks_per_node(key[0]))
        batch = np.array([row.batch for row in mine])
        found.append(Group(*key, places, Models([row.model for row in mine]), batch, made))
    return found


def measured_s(rows: Sequence[MeasuredRow]) -> Floats:
    """Return the steps, seconds."""
    return np.array([row.step_s for row in rows])


def measured_rows(path: Path, gpu: str) -> list[MeasuredRow]:
    """Return the rows of a CSV file or a run folder.

    Args:
        path: Of either.
        gpu: Device of rows that name none.

    Raises:
        UsageError: There are none, or one cannot be; the text says why.
    """
    rows = _rows_of_run(path) if path.is_dir() else read_rows(path)
    if not rows:
        raise UsageError(f"{path} has no measured row. Give a CSV file or a run on GPUs.")
    _refuse_contradictions(path, rows)
    for number, row in enumerate(rows, 2):
        device = device_type(row.gpu or gpu)
        peak = peak_flops(device.name, "bfloat16") or peak_flops(device.name, "float16")
        assert peak is not None, "every device type has one"
        part = row.model.flops_per_sample * row.batch / row.gpus / row.step_s / peak
        if not 5e-4 < part < (2.0 if row.matrices == "fp8" else 1.0):
            raise UsageError(
                f"{path}, line {number}: {row.step_s:g} s a step would be {100 * part:.2g} % of "
                f"the published peak. Is it in another unit, or its model another?"
            )
        if row.memory_gb * 1e9 > 1.1 * device.memory_bytes:
            raise UsageError(
                f"{path}, line {number}: memory_gb {row.memory_gb:g} is more than the "
                f"{device.memory_bytes / 1e9:g} GB of {device.name}. Give it in 10^9 bytes."
            )
    return rows


def _rows_of_run(path: Path) -> list[MeasuredRow]:
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise

    run = load_run(path)
    if run.imported is not None:
        raise UsageError(
            f"{path} was read from logs, which do not say how the model was divided. Give its rows "
            f"as a CSV file instead, with the columns {', '.join(NEEDED)} and step_s."
        )
    if run.info.spec.device != "cuda":
        raise UsageError(
            f"{path} was measured on {run.info.spec.device}: give a run on GPUs, or a CSV file."
        )
    devices = run.info.environment.get("devices") or [{}]
    name = str(devices[0].get("name", ""))
    gpu = next((short for short, known in DEVICE_TYPES.items() if known.name in name), "")
    found = rows_of_summary(summarise(run), gpu)
    if not found:
        raise UsageError(
            f"{path} has no row in 16 bits of a built-in transformer. Measure one: scalebench run "
            "ddp --workload gpt-124m --dtype bfloat16."
        )
    return found


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
                **given,
                gpu=gpu,
                launch="compiled" if row.strategy_settings.get("compile") else "eager",
                gpus=row.world_size,
                layers=model.layers,
                width=model.width,
                heads=model.heads,
                sequence=model.context,
                vocabulary=model.vocabulary,
                experts=model.experts,
                top_k=model.top_k,
                batch=row.global_batch,
                microbatch=row.global_batch // replicas // choice.microbatches,
                shard=choice.shard,
                gathered_bytes=4,
                step_s=row.step_s.value,
                memory_gb=(row.peak_memory_bytes or 0) / 1e9,
            )
        )
    return found


def configuration(row: MeasuredRow) -> str:
    """Return all of a row but what was measured of it."""
    same = {"step_s": 1.0, "memory_gb": 0.0}
    same |= {"microbatch": 0, "shard": 0, "kv_heads": 0, "inner": 0}  # their defaults are others'
    return f"{row.model} {row.choice} {row.model_copy(update=same)}"


APART = 1.25
"""Rows of one configuration that differ by more contradict one another: steps of a quiet cluster
differ by a few percent from one job to the next."""


def _refuse_contradictions(path: Path, rows: Sequence[MeasuredRow]) -> None:
    seen: dict[str, tuple[int, float]] = {}
    for number, row in enumerate(rows, 2):
        line, step_s = seen.setdefault(configuration(row), (number, row.step_s))
        times = max(row.step_s / step_s, step_s / row.step_s)
        if times > APART:
            raise UsageError(
                f"{path}, lines {line} and {number}: one configuration takes {step_s:.3g} and "
                f"{row.step_s:.3g} s a step. Remove the wrong row, or measure it again."
            )
