"""One log and what the user says of it: the job's N, batch, model, and what its steps take.

N, batch and sequence come from the log where it says them, else from the command line; where both
say and differ, the log is refused. A file's name only suggests. Of a log that still
grows the newest lines are read.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from scalebench.costmodel.device_peaks import peak_flops
from scalebench.errors import UsageError
from scalebench.importing.formats import Format
from scalebench.importing.reader import Log, Reader, read_log
from scalebench.importing.steps import DIFFER, ROUNDED, Steps, steps_of, warmup_of
from scalebench.importing.tables import is_table, read_table
from scalebench.importing.templates import opened, text_of
from scalebench.records.summary import ImportedLog

MOST_KEPT = 2000
"""So many steps, or stretches of steps, are kept of a log."""
TERA = 1e12
WHOSE_RATE = (
    "several ranks print a rate, and nothing says whether it is the rank's or the job's: it is "
    'left out. In scalebench.toml a format says it, by scope = "rank" or "job"; of a table, a '
    "column called tokens_per_s_per_gpu"
)
LEAST_MEMORY, MOST_MEMORY = 2**20, 2**50
"""Less has lost its unit; more no machine has."""
MODEL = ("layers", "hidden", "parameters", "heads", "kv_heads", "inner", "vocabulary", "experts")
DIVISION = ("top_k", "tensor", "pipeline", "context", "expert", "microbatch", "zero")
"""What a log may say of its model, and of how it was divided."""
_NAMED = re.compile(r"(?:gpus?|ngpus?|np|ws)[-_=]?(\d+)|(\d+)[-_x]*(?:gpus?|[ahvb]\d{2,3})", re.I)


@dataclass(frozen=True)
class Stated:
    """What the user says of a log; None: nothing.

    Attributes:
        gpus: N.
        batch_per_gpu: Samples of a step, divided by N.
        seq: Tokens of a sample.
        gpu: Name of the device.
        columns: Value → column, of tables.
    """

    gpus: int | None = None
    batch_per_gpu: float | None = None
    seq: float | None = None
    gpu: str | None = None
    columns: Mapping[str, str] | None = None


def import_log(path: Path, stated: Stated, known: list[Format]) -> ImportedLog:
    """Read a log and what its steps take.

    Raises:
        UsageError: It cannot be read, N is not known, or what the user says contradicts it.
        EnvironmentUnfit: The library that reads it is not installed.
    """
    columns = stated.columns or {}
    table = read_table(path, columns) if is_table(path, columns) else None
    return job_of(table or read_log(path, known), stated)


def job_of(log: Log, stated: Stated, any_size: bool = False) -> ImportedLog:
    """Return what a log that was read says of its job; errors as of `import_log`.

    ``any_size``: N may stay unknown: it is 1 then, and rates are those of a GPU.
    """
    if _has_rates_of_whom(log):
        log.notices.append(WHOSE_RATE)
        log.format = log.format.model_copy(update={"rate": None})
    world_size = _world_size(log, stated, any_size)
    batch = _batch(log, stated, world_size)
    seq = stated.seq or log.facts.number("seq")
    steps = steps_of(log, batch, _work(log, batch, seq, world_size))
    notices = [*log.notices, *steps.notices]
    batch = batch or _batch_by_rate(log, steps, world_size)
    rates = _rates(log, steps, batch, seq, world_size)
    if wrong := _timer(log, batch, steps):
        notices.append(wrong)
    if log.records.bad_loss:
        notices.append(f"the loss is not finite in {log.records.bad_loss} lines")
    seconds, counts = _thinned(steps)
    gpu = stated.gpu or log.facts.gpu
    tflops = _mean(log, "tflops", steps)
    mfu = _mean(log, "mfu", steps)
    mfu = mfu / 100 if mfu and mfu > 1.5 else mfu  # of a column in percent
    memory = log.records.memory
    peak = peak_flops(gpu, "bfloat16") if gpu else None
    return ImportedLog(
        name=log.path.name,
        format=log.format.name,
        world_size=world_size,
        global_batch=batch,
        seq=seq,
        model=_model(log),
        gpu=gpu,
        software=log.facts.software,
        step_s=seconds,
        counts=counts,
        averaged=steps.averaged,
        source=steps.source,
        no_steps=steps.why_none,
        warmup=steps.warmup,
        num_pauses=steps.pauses[0],
        pause_s=steps.pauses[1],
        samples_per_s=rates["samples"],
        tokens_per_s=rates["tokens"],
        tflops_per_gpu=tflops,
        mfu=tflops * TERA / peak if mfu is None and tflops and peak else mfu,
        memory_bytes=int(memory) if LEAST_MEMORY <= memory < MOST_MEMORY else None,
        loss_first=log.records.loss[0] if log.records.loss else None,
        loss_last=log.records.loss[-1] if log.records.loss else None,
        bad_loss_at=log.records.bad_at,
        notices=notices,
    )


def _world_size(log: Log, stated: Stated, any_size: bool) -> int:
    facts, ranks = log.facts, log.records.ranks
    said = facts.number("world_size")
    if said is None and log.format.each_rank and ranks == set(range(len(ranks))) and ranks:
        said = float(len(ranks))
    if said is None and log.format.final:
        said = log.records.columns["copies"][0]
    if stated.gpus is not None and said is not None and stated.gpus != said:
        raise UsageError(
            f"{log.path} says that the job had {said:.0f} ranks, and gpus={stated.gpus} was given. "
            "Leave it out, or name the right log."
        )
    number = stated.gpus or (int(said) if said is not None else None)
    if number is None and any_size:
        return 1
    if number is None:
        raise UsageError(_no_world_size(log))
    if log.format.each_rank and ranks and max(ranks) >= number:
        raise UsageError(f"{log.path}: rank {max(ranks)} prints, and N is said to be {number}.")
    return number


def _no_world_size(log: Log) -> str:
    """Say that N is missing, what suggests it, and what to write."""
    hints = list(log.facts.suggests)
    several = log.facts.numbers.get("world_size", [])
    if several:
        hints.append(f"it gives several: {', '.join(f'{n:.0f}' for n in several)}")
    if log.records.most_copies > 1:
        hints.append(f"{log.records.most_copies} lines say the same step")
    named = _NAMED.search(log.path.stem)
    number = next(filter(None, named.groups()), "N") if named else "N"
    if number != "N":
        hints.append(f"its name suggests {number}")
    hint = f" ({'; '.join(hints)})" if hints else ""
    return (
        f"{log.path} does not say on how many GPUs the job ran{hint}. Give it behind the file: "
        f"{log.path.name}:gpus={number}."
    )


def _batch(log: Log, stated: Stated, world_size: int) -> float | None:
    """Return the samples of a step of the job; None: it is not said."""
    lines = log.records.column("batch")
    lines = lines[np.isfinite(lines)]
    said = float(lines[-1]) if len(lines) else log.facts.number("global_batch")
    if len(lines) and lines.min() != lines.max():
        said = float(lines.mean())
        if lines.max() > lines.min() * (1 + DIFFER):
            log.notices.append(
                f"the batch has {lines.min():g} to {lines.max():g} samples: the mean counts"
            )
    given = None if stated.batch_per_gpu is None else stated.batch_per_gpu * world_size
    if given is not None and said is not None and abs(given / said - 1) > DIFFER:
        raise UsageError(
            f"{log.path} says that a step has {said:g} samples; --batch-per-gpu "
            f"{stated.batch_per_gpu:g} on {world_size} GPUs would be {given:g}."
        )
    of_rank = log.facts.number("rank_batch")
    return said or given or (of_rank * world_size if of_rank else None)


def _has_rates_of_whom(log: Log) -> bool:
    """Tell whether several ranks say rates, and nothing says whether theirs or the job's."""
    records = log.records
    said = "/" in records.units.get("rate", "")
    if not log.format.general or said or records.most_copies < 2:
        return False
    several = len(records.ranks) > 1 and bool(np.isfinite(records.column("rate")).any())
    return several or records.rates_differ


def _work(log: Log, batch: float | None, seq: float | None, world_size: int) -> float | None:
    """Return what a step does in the unit of the printed rate; None: not known."""
    rate = log.format.rate
    if rate is None or rate.doubtful:
        return None
    if rate.scope == "rank" and log.records.most_copies < world_size:
        return None
    work = batch
    if _unit(log)[0] == "tokens":
        work = batch * seq if batch and seq else _mean(log, "step_tokens", Steps())
    return work / world_size if work and _unit(log)[1] else work


def _unit(log: Log) -> tuple[str, bool]:
    """Return what the printed rate counts, and whether it is that of one GPU."""
    unit = log.records.units.get("rate", "samples").partition("/")[0]
    return unit, log.format.scope_of(log.records.units) == "gpu"


def _batch_by_rate(log: Log, steps: Steps, world_size: int) -> float | None:
    """Return which of a log's batch and N times it fits rate and clock; None: neither does."""
    named = log.facts.number("some_batch")
    rate = _rate(log, steps, world_size)
    if named is None or rate is None or not len(steps.seconds):
        return None
    done = rate * float(np.median(steps.seconds))
    fits = [b for b in (named, named * world_size) if abs(done / b - 1) < DIFFER]
    return fits[0] if fits else None


def _rates(
    log: Log, steps: Steps, batch: float | None, seq: float | None, world_size: int
) -> dict[str, float | None]:
    """Return samples and tokens per second of the job, each None where it is not known."""
    mean = steps.mean_s if len(steps.seconds) else None
    printed = _rate(log, steps, world_size)
    doubtful = log.format.rate is not None and log.format.rate.doubtful
    unit, _ = _unit(log)
    samples = batch / mean if batch and mean else None
    if samples is None and printed is not None and unit == "samples" and not doubtful:
        samples = printed
    samples = samples or _of_whole(log, steps)
    tokens = samples * seq if samples and seq else None
    of_step = _mean(log, "step_tokens", steps)
    if log.format.rate is not None and log.format.rate.kind == "cumulative" and of_step and mean:
        tokens = of_step / mean
    elif printed is not None and unit == "tokens":
        tokens = printed if tokens is None or log.format.each_rank else tokens
    elif tokens is None and mean and of_step:
        tokens = of_step / mean
    return {"samples": samples, "tokens": tokens}


def _rate(log: Log, steps: Steps, world_size: int) -> float | None:
    """Return the printed rate as that of the job, weighted by the time of each step."""
    form, records = log.format, log.records
    rate = records.column("rate")
    kept = np.isfinite(rate) & (rate > 0)
    if form.rate is None or not kept.any():
        return None
    if form.rate.scope == "rank" and not form.final:
        kept &= records.column("copies") >= world_size
    if len(steps.kept):
        kept &= steps.kept
    else:
        first = warmup_of(1 / rate[kept]) if kept.any() else 0
        kept[np.flatnonzero(kept)[:first]] = False
    if not kept.any():
        return None
    time = records.column("time")[kept]
    weights = time if np.isfinite(time).all() and form.time and form.time.kind == "step" else None
    mean = float(np.average(rate[kept], weights=weights))
    return mean * world_size if _unit(log)[1] else mean


def _of_whole(log: Log, steps: Steps) -> float | None:
    """Return samples per second by what is said at the end, without evaluations; None: nothing."""
    totals = log.totals
    per_second = totals.get("train_samples_per_second")
    if per_second is None or (len(steps.seconds) and steps.source != "total"):
        return totals.get("training_sequences_per_second") or totals.get("total images/sec")
    runtime, done = totals["train_runtime"], totals.get("steps", 0.0)
    planned = runtime * totals.get("train_steps_per_second", 0.0)  # of which the rates are
    if done and planned and abs(done - planned) > max(ROUNDED * runtime, DIFFER * done):
        per_second *= done / planned
    return per_second * runtime / (runtime - steps.pauses[1])


def _mean(log: Log, name: str, steps: Steps) -> float | None:
    """Return the mean of a column over the steps that count; None: it is empty."""
    values = log.records.column(name)
    kept = np.isfinite(values) & (values > 0)
    if len(steps.kept) and (kept & steps.kept).any():
        kept &= steps.kept
    return float(np.median(values[kept])) if kept.any() else None


def _timer(log: Log, batch: float | None, steps: Steps) -> str | None:
    """Say where DeepSpeed's own timer and the steps differ."""
    says = log.totals.get("timer_rate")
    if says is None or not batch or not len(steps.seconds):
        return None
    does = batch / steps.mean_s
    if abs(says / does - 1) <= DIFFER:
        return None
    return f"DeepSpeed's timer says {says:.4g} samples/s and the job does {does:.4g}: not used"


def _model(log: Log) -> dict[str, Any]:
    stated: dict[str, Any] = {
        name: value for name in (*MODEL, *DIVISION) if (value := log.facts.number(name)) is not None
    }
    return ({"name": log.facts.model} if log.facts.model else {}) | stated


def _thinned(steps: Steps) -> tuple[list[float], list[float]]:
    """Return at most `MOST_KEPT` steps; neighbours are put together to their mean."""
    number = len(steps.seconds)
    if number <= MOST_KEPT:
        return list(map(float, steps.seconds)), list(map(float, steps.counts))
    size = -(-number // MOST_KEPT)
    edges = np.arange(0, number, size)
    counts = np.add.reduceat(steps.counts, edges)
    sums = np.add.reduceat(steps.seconds * steps.counts, edges)
    return list(map(float, sums / counts)), list(map(float, counts))


class Follower:
    """Reads what a log has got since it was last looked at.

    The log may not be there yet.
    """

    def __init__(self, path: Path, stated: Stated, known: list[Format]) -> None:
        self.path, self.stated = path, stated
        self.reader = Reader(path, known)
        self.at = 0

    def look(self) -> str:
        """Return in one line how far the job has come and how fast it is."""
        text = self._newest()
        if text:
            self.reader.feed(text)
        log = self.reader.log()
        if log is None:
            return "no step yet"
        log.records = copy.deepcopy(log.records)  # ranks may still print of the newest steps
        log.records.close()
        if not len(log.records):
            return "no step yet"
        job = job_of(log, self.stated, any_size=True)
        parts = [f"step {log.records.columns['step'][-1]:.0f}"]
        if job.step_s:
            mean = sum(s * n for s, n in zip(job.step_s, job.counts, strict=True)) / sum(job.counts)
            parts += [f"{mean:.4g} s a step", f"last {job.step_s[-1]:.4g} s"]
        for rate, unit in ((job.samples_per_s, "samples/s"), (job.tokens_per_s, "tokens/s")):
            parts += [f"{rate:.4g} {unit}"] if rate else []
        if job.loss_last is not None:
            parts.append(f"loss {job.loss_last:.4g}")
        return " · ".join(parts)

    def _newest(self) -> str:
        """Return the whole lines that were added."""
        if not self.path.exists():
            return ""
        with opened(self.path) as file:
            file.seek(self.at)
            piece = file.read()
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        self.at += end
        return text_of(piece[:end])
