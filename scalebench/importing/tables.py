"""Logs that are tables: CSV, JSON lines, transformers' trainer_state.json, TensorBoard's events.

A table has a column for each value. Common names are known (W&B, MLflow, Lightning, TensorBoard);
others are named by ``--column time=step_time_s``.
"""

import csv
import itertools
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from scalebench.errors import EnvironmentUnfit, UsageError, unknown_name
from scalebench.grouping import by_key
from scalebench.importing.formats import (
    VALUES,
    Format,
    Kind,
    Value,
    built_in,
)
from scalebench.importing.reader import Log
from scalebench.importing.records import Facts, Line, Records, facts_of
from scalebench.importing.templates import (
    SINCE_1970,
    chunks,
    clock_in_seconds,
    elapsed,
    of_commas,
    opened,
    prefix_of,
    small,
)

KNOWN = {
    "step": (
        *("step", "global_step", "trainer/global_step", "train/global_step", "_step"),
        *("iteration", "iter", "Step", "current_steps", "global_step/max_steps"),
    ),
    "epoch": ("epoch",),
    "clock": (
        *("_timestamp", "timestamp", "wall_time", "Wall time", "Wall Time"),
        *("time_ms", "timestamp_ms", "@timestamp", "asctime", "ts"),
    ),
    "elapsed": (
        *("_runtime", "Relative Time (Process)", "Relative Time (Wall)", "_absolute_runtime"),
        *("elapsed_s", "elapsed", "elapsed_time", "train_time_s"),
    ),
    "time": (
        *("train_step_timing in s", "dt_ms"),
        *("time_metrics/end_to_end(s)", "elapsed_time_per_iteration_ms", "iteration-time"),
        *("time_per_iteration", "throughput/duration", "time"),
    ),
    "rate": (
        *("train_samples_per_second", "train_tokens_per_second", "throughput(tps)"),
        *("throughput/device/tokens_per_sec", "throughput/device/samples_per_sec"),
    ),
    "loss": (
        "loss",
        "train_loss",
        "train/loss",
        "reduced_train_loss",
        "lm loss",
        "train_loss_step",
        *("total_loss", "loss/train/total", "train/CrossEntropyLoss"),
    ),
    "mfu": ("mfu", "throughput/device/mfu", "device/mfu", "throughput/mfu", "mfu(%)"),
    "memory": ("memory_bytes", "peak_memory_bytes"),
    "batch": ("global_batch_size", "batch_size_global"),
}
MOST_STEPS = 1e15
"""A larger number counts no steps."""
ALIASES = (*VALUES, "step", "elapsed")
OF_GPU = re.compile(r"(per[_ ]|/)(gpu|device|rank|chip)|device/|\(tps\)", re.I)
"""In the name of a rate that is not that of the job; torchtitan's tps is of a GPU."""
_UNIT = re.compile(r"[_. /(](ns|us|ms|minutes|hours)\)?$")
_SCALE = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "minutes": 60.0, "hours": 3600.0}


@cache
def _unit_of(name: str, column: str) -> str:
    """Return the unit of a column by its name; empty: its name is none that text has."""
    own = column.rpartition(" - ")[2]
    (general,) = (form for form in built_in() if form.name == "key-value")
    unit_of = general.values[name].unit_of
    return unit_of(small(own)) or unit_of(small(own.partition("/")[2])) or ""


def _kind_of(path: Path) -> str:
    """Return the end of a file's name that tells what it is, also of a packed one."""
    return Path(path.name.lower().removesuffix(".gz")).suffix


def is_table(path: Path, columns: Mapping[str, str]) -> bool:
    """Tell whether a file is a table, by its name, or since its columns are named."""
    suffixes = (".csv", ".tsv", ".jsonl", ".json", ".ndjson")
    return bool(columns) or _kind_of(path) in suffixes or "tfevents" in path.name


def read_table(path: Path, columns: Mapping[str, str]) -> Log | None:
    """Read a table.

    ``columns``: value → the column that has it.

    Returns:
        None: it is none, but text.

    Raises:
        UsageError: It has no column of steps or of times.
        EnvironmentUnfit: TensorBoard's own library is not installed.
    """
    for name in columns:
        if name not in ALIASES:
            raise unknown_name("value for --column", name, ALIASES)
    if "tfevents" in path.name:
        return _of_rows(path, _events(path), columns)
    if _kind_of(path) == ".json":
        return _of_json(path, columns)
    if _kind_of(path) in (".csv", ".tsv"):
        return _of_rows(path, _unpivoted(path, _csv(path)), columns)
    with opened(path) as file:
        if not file.read(200).lstrip().startswith(b"{"):
            if columns:
                return _of_rows(path, _unpivoted(path, _csv(path)), columns)
            return None
    return _of_rows(path, _json_lines(path), columns)


def _of_json(path: Path, columns: Mapping[str, str]) -> Log | None:
    try:
        with opened(path) as file:
            content = json.load(file)
    except (ValueError, RecursionError) as error:
        if isinstance(error, json.JSONDecodeError) and error.msg.startswith("Extra data"):
            return _of_rows(path, _json_lines(path), columns)
        with opened(path) as file:
            if not file.read(200).lstrip().startswith((b"{", b"[")):
                return None
        raise UsageError(f"{path} is not JSON: {error}.") from None
    listed = content.get("rows") if isinstance(content, dict) else content
    if isinstance(content, dict) and "train_runtime" in content:
        listed = [content]
    rows = [row for row in listed if isinstance(row, dict)] if isinstance(listed, list) else []
    state = content if isinstance(content, dict) and "log_history" in content else None
    if any("train_runtime" in row for row in rows):
        state = {"log_history": rows}
    if state is not None:
        try:
            return _trainer_state(path, state)
        except (TypeError, ValueError) as error:
            raise UsageError(f"{path} is no history of transformers: {error}.") from None
    return _of_rows(path, rows, columns)


def _csv(path: Path) -> Iterator[dict[str, Any]]:
    lines = _lines(path)
    head = next(lines, "").lstrip("\ufeff")
    between = max(",;\t", key=head.count)
    rows = itertools.chain([head], lines)
    yield from csv.DictReader(rows, delimiter=between, skipinitialspace=True)


def _unpivoted(path: Path, rows: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield a row for each step where each value has a row of its own, as MLflow exports them.

    The clock is that of the metric with the most values: others may be logged later in a step.

    Raises:
        UsageError: They are of several runs.
    """
    held: dict[str, dict[str, dict[str, Any]]] = {}
    runs = set()
    for row in rows:
        if not {"key", "value", "step"} <= row.keys():
            yield row
            continue
        runs.add(row.get("run_id") or row.get("Run ID"))
        held.setdefault(row["key"], {})[row["step"]] = row
    if len(runs) > 1:
        raise UsageError(f"{path} has {len(runs)} runs: export each to a separate file.")
    often = max(held.values(), key=len, default={})
    for step in sorted(often, key=float):
        stated = {key: of[step]["value"] for key, of in held.items() if step in of}
        yield {"timestamp": often[step].get("timestamp"), **stated, "step": step}


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    for line in _lines(path):
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            yield row | (row["metrics"] if isinstance(row.get("metrics"), dict) else {})


def _lines(path: Path) -> Iterator[str]:
    with opened(path) as file:
        for piece in chunks(file):
            yield from piece.split("\n")


def _events(path: Path) -> Iterator[dict[str, Any]]:
    try:
        from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    except ImportError:
        raise EnvironmentUnfit(
            f"{path} is of TensorBoard, whose library is not installed: "
            "pip install 'scalebench[tensorboard]'."
        ) from None
    held: dict[int, dict[str, Any]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            number = _scalar(value)
            if number is not None:
                row = held.setdefault(event.step, {"step": event.step})
                row |= {value.tag: number, "wall_time": event.wall_time}
    yield from (held[step] for step in sorted(held))


def _scalar(value: Any) -> float | None:
    if value.HasField("simple_value"):
        return float(value.simple_value)
    found = [*value.tensor.float_val, *value.tensor.double_val]
    if not found and value.tensor.tensor_content and value.tensor.dtype in (1, 2):
        import struct

        kind = "f" if value.tensor.dtype == 1 else "d"
        size = struct.calcsize(kind)
        if len(value.tensor.tensor_content) == size:
            return float(struct.unpack(kind, value.tensor.tensor_content)[0])
    return float(found[0]) if len(found) == 1 else None


def _of_rows(path: Path, rows: Iterable[Mapping[str, Any]], given: Mapping[str, str]) -> Log:
    records, named = Records(), dict[str, str]()
    steps = 0.0
    notices: list[str] = []
    first: Mapping[str, Any] = {}
    for rank, row in _with_ranks(rows):
        if not row.keys() <= first.keys() or not named:
            first = {**first, **row}
            named = _named(first, given, path)
        values = _numbers(row, named)
        step, epoch = values.pop("step", None), values.pop("epoch", None)
        if not values or (step is None and "step" in named) or row.get("mode", "train") != "train":
            continue
        at = steps if step is None else records.place(step, epoch, None, False)
        steps += 1
        if records.goes_back(at):
            notices = [f"the step number goes back to {at:.0f}: only the part after it counts"]
            records = Records()
        records.ranks |= set() if rank is None else {rank}
        scope = "gpu" if OF_GPU.search(named.get("rate", "")) else "job"
        records.add(at, Line(values, "" if rank is None else f"/{rank}", scope, True))
    records.close()
    if not len(records) or not {"time", "elapsed", "clock", "rate", "speed"} & named.keys():
        shown = ", ".join(str(name) for name in list(first)[:20])
        raise UsageError(
            f"{path} has no column of times that is known. Name one: --column time=NAME (or clock, "
            f"elapsed, rate); of W&B, export a chart over Relative Time (Process) with _step. It "
            f"has: {shown or 'no columns'}."
        )
    of_wandb = "_step" in named.get("step", "") or any(" - " in str(name) for name in first)
    if of_wandb and named.get("step", "").rpartition(" - ")[2] in ("_step", "Step"):
        notices.append(
            f"{named['step']} of W&B counts calls of wandb.log: a step takes what is between two "
            "of them, unless the job gives its own step"
        )
    records.units["rate"] = _unit_of_rate(named.get("rate", ""))
    records.resolution = 1e-3
    kind: Kind = "cumulative" if "elapsed" in named and "time" not in named else "step"
    if "data_time" in first:  # OpenMMLab, detectron2
        kind = "window"
    elif named.get("time") == "time" and "time" not in given:
        records.unsaid = True
    form = Format(
        name="table",
        general=True,
        step=["{step} "],
        time=Value(at=["x"], kind=kind),
        rate=Value(at=["x"]),
    )
    return Log(path, form, records, facts_of(json.dumps(first, default=str)), notices)


def _unit_of_rate(column: str) -> str:
    unit = _unit_of("rate", column)
    unit = unit or ("tokens" if re.search("tok|tps", column, re.I) else "samples")
    return unit + ("/gpu" if "/" not in unit and OF_GPU.search(column) else "")


def _with_ranks(
    rows: Iterable[Mapping[str, Any]],
) -> Iterator[tuple[int | None, Mapping[str, Any]]]:
    """Yield rows with their rank: the first of each, then the second ones; None: as they come.

    Ranks are counted from 0 without a gap: a column of this name may be LoRA's.
    """
    rows = iter(rows)
    head = list(itertools.islice(rows, 1))
    if not any("rank" in row for row in head):
        yield from ((None, row) for row in itertools.chain(head, rows))
        return
    every = [*head, *rows]
    held = by_key((str(row.get("rank")), row) for row in every)
    if held.keys() != set(map(str, range(len(held)))):
        yield from ((None, row) for row in every)
        return
    for some in itertools.zip_longest(*held.values()):
        yield from ((int(n), row) for n, row in zip(held, some, strict=True) if row is not None)


def _named(row: Mapping[str, Any], given: Mapping[str, str], path: Path) -> dict[str, str]:
    """Return which column has which value; W&B puts the run's name before each.

    Raises:
        UsageError: A column that was given is not there, or there are several runs.
    """
    found = {}
    names = [str(name) for name in row]
    for name, wanted in given.items():
        fits = [n for n in names if wanted in (n, n.rpartition(" - ")[2])]
        if not fits:
            raise UsageError(f"{path} has no column {wanted}. It has: {', '.join(map(str, row))}.")
        found[name] = wanted if wanted in fits else fits[0]
    own = {n.rpartition(" - ")[0] for n in found.values()}
    if own - {""}:
        names = [n for n in names if n.rpartition(" - ")[0] in {"", *own}]
    for name in ("time", "rate", "speed"):
        if name not in found and (fits := [n for n in names if _unit_of(name, n)]):
            found[name] = min(fits, key=lambda column: bool(OF_GPU.search(column)))
    for name, ways in KNOWN.items():
        for way in () if name in found else ways:
            if fits := [n for n in names if n.rpartition(" - ")[2] == way]:
                found[name] = way if way in fits else fits[0]
                break
    runs = sorted({n.rpartition(" - ")[0] for n in names if " - " in n})
    if len(runs) > 1 and any(" - " in n for n in found.values()):
        raise UsageError(
            f"{path} has {len(runs)} runs: {', '.join(runs[:5])}. Export one alone, or name a "
            f"column of one: --column loss='{runs[0]} - …'."
        )
    return found


def _numbers(row: Mapping[str, Any], named: Mapping[str, str]) -> dict[str, float]:
    values: dict[str, float] = {}
    for name, column in named.items():
        said = row.get(column)
        if said is None or said == "":
            continue
        try:
            said = said.partition("/")[0] if name == "step" and isinstance(said, str) else said
            clocked = name == "elapsed" and (":" in str(said) or str(said).endswith("s"))
            number = elapsed(said) if clocked else of_commas(str(said), name in ("time", "elapsed"))
        except (TypeError, ValueError):
            number, name = prefix_of(str(said)).clock or math.nan, "clock"
        if name == "step" and number >= MOST_STEPS:
            continue
        if not math.isfinite(number) and name != "loss":
            continue
        if name in ("time", "elapsed"):
            unit = _UNIT.search(column)
            number *= _SCALE.get(_unit_of("time", column) or (unit[1] if unit else ""), 1.0)
        if name == "clock" or (name == "time" and number > SINCE_1970):
            name, number = "clock", clock_in_seconds(number)
        values["time" if name == "elapsed" and "time" not in named else name] = number
    values.pop("elapsed", None)
    return values


def _trainer_state(path: Path, content: Mapping[str, Any]) -> Log:
    """Read transformers' trainer_state.json: no step has its time, only the whole has one."""
    history = [row for row in content["log_history"] if isinstance(row, dict)]
    records = Records()
    for row in history:
        if "loss" in row and isinstance(row.get("step"), int | float):
            records.add(float(row["step"]), Line({"loss": float(row["loss"])}, "", "job", True))
    records.close()
    last = next((row for row in reversed(history) if "train_runtime" in row), None)
    notices = []
    totals: dict[str, float] = {}
    if last is not None:
        steps = _finite(last, "step") or _finite(content, "global_step")
        begun = min((row["step"] for row in history if "step" in row), default=0)
        within = history[: history.index(last)]  # evaluations that come later are not in the total
        evaluation = sum(_finite(row, "eval_runtime") for row in within)
        totals = {"train_runtime": _finite(last, "train_runtime"), "steps": steps}
        totals |= {
            "eval_runtime": evaluation,
            "num_evals": sum("eval_runtime" in r for r in within),
        }
        for rate in ("train_samples_per_second", "train_steps_per_second"):
            if last.get(rate):
                totals[rate] = _finite(last, rate)
        if sum("predict_runtime" in row for row in within):
            notices.append("predictions between the steps are not taken off: only evaluations are")
        every = float(content.get("logging_steps") or 0)
        if every >= 1 and begun > 2 * every and begun > 0.05 * steps:
            notices.append(
                f"its log begins at step {begun}: of a resumed job the runtime may be that of the "
                "resumed part"
            )
    form = Format(name="trainer-state", step=["{step} "])
    return Log(path, form, records, Facts(), notices, totals=totals)


def _finite(row: Mapping[str, Any], name: str) -> float:
    value = row.get(name)
    number = 0.0 if value is None else float(value)
    if not math.isfinite(number):
        raise ValueError(f"its {name} is {number}")
    return number
