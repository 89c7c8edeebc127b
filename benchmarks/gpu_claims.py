"""Claims about GPUs, checked against the results of `benchmarks.gpu_evidence`: yes or no."""

import gzip
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

POWER_TOLERANCE = 0.05
COUNTER_TOLERANCE = 0.1
"""The energy counter has the mean, the readings are a median."""
PROBE_TOLERANCE = 0.05
NCCL_FIELDS = ("Collective name", "In msg nelems", "dtype", "Group size")


@dataclass(frozen=True)
class Claim:
    """A claim and its verdict.

    Attributes:
        holds: None: one GPU cannot show it, or its step did not come to an end.
        value: What was found, or why there is nothing.
    """

    text: str
    holds: bool | None
    value: str

    @property
    def verdict(self) -> str:
        """The verdict in a word."""
        return {True: "yes", False: "no", None: "not measured"}[self.holds]


def judge(folder: Path, state: Mapping[str, Mapping[str, Any]]) -> list[Claim]:
    """Return the verdict on every claim.

    Args:
        folder: With the run folders, and the trace.
        state: Step → its status and the end of what it printed.
    """
    done = {name: one["output"] for name, one in state.items() if one["status"] == "done"}
    found = [
        *_about_survey(done.get("gpu-doctor")),
        *_about_power(done.get("gpu-power")),
        *_about_row(folder, "gpu-ddp-short", "ddp", done),
        *_about_row(folder, "gpu-fsdp-short", "fsdp", done),
        *_about_trace(folder / "gpu-trace.json", "gpu-trace" in done),
        *_about_sharing(folder / "gpu-shared-by-two", "gpu-shared-by-two" in done),
        *_about_batch(folder / "gpu-max-batch", "gpu-max-batch" in done),
    ]
    return [Claim(text, holds, value) for text, holds, value in found]


Found = Iterator[tuple[str, bool | None, str]]
UNDONE = (None, "its step is not done")


def _about_survey(output: str | None) -> Found:
    text = "the survey names the GPU and its rate"
    if output is None:
        yield text, *UNDONE
        return
    name = re.search(r"^cuda:0 +(.+)$", output, re.MULTILINE)
    rate = re.search(r"^rate of cuda:0 +(.+)$", output, re.MULTILINE)
    there = "; ".join(match[1] for match in (name, rate) if match)
    yield text, bool(name and rate), there or "no GPU is named"


def _about_power(output: str | None) -> Found:
    answer = json.loads(output.strip().splitlines()[-1]) if output else {}
    for phase in ("idle", "busy"):
        text = f"{phase}: NVML, nvidia-smi and the energy counter agree"
        watts = answer.get(phase)
        if watts is None:
            yield text, (False if "skipped" in answer else None), answer.get("skipped", UNDONE[1])
            continue
        nvml, smi, counter = (watts[f"{n}_w"] for n in ("nvml", "nvidia_smi", "energy_counter"))
        near = abs(nvml / smi - 1) <= POWER_TOLERANCE
        agree = near and abs(counter / nvml - 1) <= COUNTER_TOLERANCE
        yield text, agree, f"{nvml:.1f}, {smi:.1f} and {counter:.1f} W"


def _rows(run: Path) -> list[dict[str, Any]]:
    return list(json.loads((run / "summary.json").read_text())["rows"])


def _about_row(folder: Path, step: str, case: str, done: Mapping[str, str]) -> Found:
    """Judge what a row at N=1 has to have; energy needs windows that ``--quick`` cuts short."""
    bounds: dict[str, tuple[str, float, float]] = {
        "prediction_error": ("is not null", -1.0, 10.0),
        "mfu": ("is between 0 and 1", 0.0, 1.0),
        "probe_effect": (
            f"is below {PROBE_TOLERANCE:.0%}",
            -PROBE_TOLERANCE,
            PROBE_TOLERANCE,
        ),
        **({"energy_j_per_sample": ("is not null", 0.0, 1e9)} if case == "ddp" else {}),
    }
    gradients = f"{case}: gradients are those of one process"
    sizes = f"{case}: its own trace knows the size of every operation"
    if step not in done:
        undone = (
            gradients,
            *(f"{case}: {name} {text}" for name, (text, *_) in bounds.items()),
            sizes,
        )
        yield from ((text, *UNDONE) for text in undone)
        return
    row = next(row for row in _rows(folder / step) if row["case"] == case)
    checked = row["correctness"] or {}
    said = f"{checked.get('status')}, {checked.get('gradient_deviation')} off"
    verified = checked.get("status") == "verified"
    yield gradients, verified, row["reason"] or said
    for name, (text, low, high) in bounds.items():
        told = row[name]
        value = told["value"] if isinstance(told, dict) else told
        holds: bool | None = value is not None and low < value < high
        if name == "prediction_error" and value is None and row["world_size"] == 1:
            holds = None  # a prediction starts from N=1: it takes two GPUs
        said = f"{value:.4g}" if value is not None else f"null: {row['unavailable'].get(name)}"
        yield f"{case}: {name} {text}", holds, said
    file = folder / step / "cells" / f"{case}.{case}.n1.r0.json.gz"
    cell = json.loads(gzip.decompress(file.read_bytes()))
    [rank] = cell["ranks"] or [{}]
    operations = (rank.get("trace") or {}).get("operations", [])
    known = sum(op["num_bytes"] is not None for op in operations)
    said = rank.get("trace_unavailable") or f"{known} of {len(operations)}"
    if case == "fsdp" and row["world_size"] == 1 and rank.get("trace") and not operations:
        yield sizes, None, "FSDP launches none at N=1"
        return
    yield sizes, bool(operations) and known == len(operations), said


def _about_trace(path: Path, done: bool) -> Found:
    text = "the profiler's file holds NCCL's records"
    if not done:
        yield text, *UNDONE
        return
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt") as file:
        events = json.load(file)["traceEvents"]
    of_nccl = [e["args"] for e in events if e.get("name") == "record_param_comms"]
    whole = [args for args in of_nccl if all(field in args for field in NCCL_FIELDS)]
    names = ", ".join(sorted({str(args["Collective name"]) for args in whole}))
    told = f"{len(whole)} of {len(of_nccl)} with {', '.join(NCCL_FIELDS)}"
    yield text, bool(whole), f"{told}: {names}" if names else told


def _about_sharing(run: Path, done: bool) -> Found:
    text = "two ranks share the GPU, and are marked"
    if not done:
        yield text, *UNDONE
        return
    row = next(row for row in _rows(run) if row["world_size"] == 2)
    shared = row["status"] == "ok" and row["oversubscribed"]
    yield text, shared, row["reason"] or f"{row['status']}, backend {row['backend']}"


def _about_batch(run: Path, done: bool) -> Found:
    text = "--max-batch finds the largest batch, and the next does not fit"
    if not done:
        yield text, *UNDONE
        return
    found = json.loads((run / "run.json").read_text())["largest_batches"]
    said = "; ".join(f"{b['fits']} fit, {b['too_large']} do not" for b in found)
    yield text, bool(found) and all(b["fits"] > 0 for b in found), said or "none found"
