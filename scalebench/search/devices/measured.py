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

from scalebench.errors import UsageError
from scalebench.records.files import read_text
from scalebench.search.candidates import Candidates, Floats, Ints
from scalebench.search.choice import Choice, columns_of
from scalebench.search.model import Models, SearchModel
from scalebench.search.prediction.speed import short_name
from scalebench.search.space import Framework, Job

NEEDED_COLUMNS = ("gpus", "layers", "width", "heads", "sequence", "batch")
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
        table.fieldnames = [name.strip().lower() for name in table.fieldnames or ()]
        lines, names = list(table), set(table.fieldnames)
    except (OSError, ValueError, csv.Error) as error:
        raise UsageError(f"{path} cannot be read as a table: {error}.") from error
    missing = [name for name in NEEDED_COLUMNS if name not in names]
    if not names & set(SPEEDS):
        missing.append(f"a speed (one of {', '.join(SPEEDS)})")
    if missing:
        raise UsageError(
            f"{path} lacks {', '.join(missing)}; it has {', '.join(sorted(names)) or 'nothing'}. "
            "See docs/predictions.md for the columns."
        )
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
        has = " and ".join(told) or "no speed"
        raise ValueError(f"it has {has}: give one of {', '.join(SPEEDS)}")
    rest = {name: value for name, value in given.items() if name not in SPEEDS}
    row = MeasuredRow(**rest, step_s=float(given[told[0]]))
    per_step = {
        "tokens_per_s": row.batch * row.sequence,
        "tokens_per_s_per_gpu": row.batch * row.sequence / row.gpus,
        "samples_per_s": row.batch,
    }
    step_s = per_step.get(told[0], row.step_s**2) / row.step_s
    return row.model_copy(update={"gpu": short_name(row.gpu), "step_s": step_s})


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


def configuration(row: MeasuredRow) -> str:
    """Return all of a row but what was measured of it."""
    same = {"step_s": 1.0, "memory_gb": 0.0}
    same |= {"microbatch": 0, "shard": 0, "kv_heads": 0, "inner": 0}  # their defaults are others'
    return f"{row.model} {row.choice} {row.model_copy(update=same)}"
