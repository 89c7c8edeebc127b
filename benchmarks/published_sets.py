"""Tables of other people's measurements, read as rows of ``search --measured``."""

import csv
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

from scalebench.costmodel.links.topology import TOPOLOGIES
from scalebench.search.candidates import Floats
from scalebench.search.devices.fit import (
    PUBLISHED_MARGIN,
    activation_ratio,
    fit_rows,
    predicted_bytes,
    predicted_s,
)
from scalebench.search.devices.measured import MeasuredRow, measured_s, row_of
from scalebench.search.devices.parameters import Parameters
from scalebench.search.model import SearchModel
from scalebench.search.prediction.links import LinkValues, NominalLinks
from scalebench.search.prediction.speed import DEVICE_TYPES, device_type, modelled_speed
from scalebench.search.ranking import first_to_try
from scalebench.search.space import Job

Line = Mapping[str, str]
Rows = list[MeasuredRow]

MPT = {
    "125m": (12, 768, 12), "350m": (24, 1024, 16), "760m": (24, 1536, 12), "1b": (24, 2048, 16),
    "3b": (32, 2560, 20), "7b": (32, 4096, 32), "13b": (40, 5120, 40), "30b": (48, 7168, 56),
    "70b": (80, 8192, 64),
}  # fmt: skip
"""Layers, width and heads: llm-foundry's configurations."""

GPUS = {"a100_40gb": "a100-40gb", "a100_80gb": "a100", "h100_80gb": "h100"}
LLAMAS = {
    "8": {"layers": 32, "width": 4096, "heads": 32, "inner": 14336},
    "70": {"layers": 80, "width": 8192, "heads": 64, "inner": 28672},
    "405": {"layers": 126, "width": 16384, "heads": 128, "inner": 53248},
}
LLAMA = {"kv_heads": 8, "gated": True, "tied": False, "vocabulary": 128256}
"""Llama 3: Dubey et al. 2024, table 3."""


def _lines(path: Path) -> Iterator[Line]:
    with path.open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def _made(given: Mapping[str, Any]) -> Rows:
    row = row_of(given)
    try:
        assert row.choice
    except ValueError:
        return []  # its ranks do not divide: it cannot have been trained as the table says
    return [row]


def vtrain(path: Path) -> Rows:
    """Megatron-DeepSpeed: everything is computed again, scores are stored."""
    rows: Rows = []
    for line in _lines(path):
        rows += _made({
            "gpu": "a100", "gpus": line["# GPUs"], "layers": line["# layers"],
            "width": line["hidden size"], "heads": line["attention heads"],
            "sequence": line["sequence length"], "batch": line["global batch"],
            "microbatch": line["micro batch"], "tensor": line["tensor parallelism"],
            "pipeline": line["pipeline parallelism"], "checkpointing": "full",
            "attention": "stored",
            "gradient_bytes": 2, "stages": "equal",
            "step_s": float(line["iteration time (ms)"]) / 1e3,
        })  # fmt: skip
    return rows


def llm_foundry(path: Path) -> Rows:
    """FSDP; ``PURE`` reduces gradients in 16 bits; attention by its benchmark's own default."""
    rows: Rows = []
    for line in _lines(path):
        layers, width, heads = MPT[line["Model"]]
        zero = 2 if line["Sharding Strategy"] == "SHARD_GRAD_OP" else 3
        rows += _made({
            "gpu": GPUS[line["GPU"]], "gpus": line["# GPUs"], "layers": layers, "width": width,
            "heads": heads, "sequence": line["SeqLen (T)"], "vocabulary": 50368,
            "batch": line["GlobalBatchSize"], "microbatch": line["MicroBatchSize"], "zero": zero,
            "checkpointing": "full" if line["Activation Checkpointing"] == "True" else "none",
            "matrices": "fp8" if line["Precision"] == "amp_fp8" else "bfloat16",
            "gradient_bytes": 2 if line["MP Mode"] == "PURE" else 4, "attention": "triton",
            "tokens_per_s": line["Throughput (T/s)"],
        })  # fmt: skip
    return rows


def playbook(path: Path) -> Rows:
    """nanotron: gradients in 32 bits; what failed has no speed and is left out.

    Memory is what rank 0 reserved, so that of the first stage, in GiB (nanotron's logs divide by
    1024³). The table does not tell its versions: by its code all gathers again in backward. What
    is reserved over activations was fitted.
    """
    rows: Rows = []
    for line in _lines(path):
        if not line["tok_s"] or float(line["tok_s"]) <= 0:
            continue
        rows += _made({
            "gpu": "h100", "gpus": line["gpus"], "layers": line["layers"], "width": line["hidden"],
            "heads": line["heads"], "inner": line["ffn"], "gated": True,
            "tied": int(line["layers"]) < 32, "vocabulary": line["vocab"], "sequence": line["seq"],
            "batch": int(line["dp"]) * int(line["mbs"]) * int(line["grad_acc"]),
            "microbatch": line["mbs"], "tensor": line["tp"], "pipeline": line["pp"],
            "zero": line["zero"], "tokens_per_s": line["tok_s"],
            "memory_gb": float(line["gpu_memory_gb"] or 0) * 2**30 / 1e9, "memory_stage": "first",
            "state": "accumulated", "stages": "filled", "reserved": 1.2,
        })  # fmt: skip
    return rows


def mlperf(path: Path) -> Rows:
    """Llama 3.1 405B, FP8, interleaved stages."""
    rows: Rows = []
    for line in _lines(path):
        gpu = re.search("GB200|[BH][12]00", line["config_file"])
        if line["benchmark"] != "llama31_405b" or not gpu:
            continue
        rows += _made({
            **LLAMA, **LLAMAS["405"], "gpu": gpu[0].lower(),
            "gpus": int(line["nodes"]) * int(line["gpus_per_node"]),
            "sequence": line["max_sequence_length"], "batch": line["global_batch_size"],
            "microbatch": 1, "tensor": line["tp"], "pipeline": line["pp"], "context": line["cp"],
            "zero": 1, "matrices": "fp8", "gradient_bytes": 2, "launch": "compiled",
            "attention": "hopper", "overlap": True, "schedule": "interleaved-1f1b", "chunks": 8,
            "step_s": line["train_step_time_median_s"],
        })  # fmt: skip
    return rows


def bridge(path: Path) -> Rows:
    """Megatron-Bridge: Llama 3, on what `search` knows; shorter samples are fine-tuning."""
    rows: Rows = []
    for line in _lines(path):
        name = re.fullmatch(r"LLAMA3(?:\.1)?_(\d+)B8192", line["model"] + line["Sequence Length"])
        gpu = line["System"].removeprefix("DGX-").lower()
        if not name or gpu not in DEVICE_TYPES:
            continue
        matrices = re.search("FP[48]", line["Precision"])
        chunks = int(line["VP"]) if line["VP"].isdecimal() else 1
        rows += _made({
            **LLAMA, **LLAMAS[name[1]], "gpu": gpu, "gpus": line["#-GPUs"], "sequence": 8192,
            "batch": line["GBS"], "microbatch": line["MBS"], "tensor": line["TP"],
            "pipeline": line["PP"], "context": line["CP"], "attention": "hopper",
            "zero": 3 if line["FSDP"] not in ("", "0") else 1, "launch": "compiled",
            "matrices": matrices[0].lower() if matrices else "bfloat16", "gradient_bytes": 2,
            "overlap": True, "schedule": "interleaved-1f1b" if chunks > 1 else "1f1b",
            "chunks": chunks, "tokens_per_s_per_gpu": line["Tokens / sec / GPU"],
        })  # fmt: skip
    return rows


def torchtitan(path: Path) -> Rows:
    """torchtitan: what the title of a table says; its H200 tables do not tell their batch."""
    rows: Rows = []
    for line in _lines(path):
        told = " ".join([line["table"], line["Techniques"], line["Parallelism"]])
        model = re.search(r"Llama ?3(?:\.1)? (\d+)b", told, re.IGNORECASE)
        gpus = re.search(r"(\d+) (?:GPUs|H100s)", told)
        batch = re.search(r"ocal batch size (\d+)", told)
        speed = line["TPS/GPU"] or line["Vanilla TP tokens/sec"]
        if not model or not gpus or not batch or not speed:
            continue
        sizes = {axis: int(found[-1]) for axis in ("TP", "PP", "CP")
                 if (found := re.findall(rf"\b{axis}[ =]?(\d+)", told))}  # fmt: skip
        tensor, pipeline, context = (sizes.get(axis, 1) for axis in ("TP", "PP", "CP"))
        replicas = int(gpus[1]) // (tensor * pipeline * context)
        memory = float(line["Memory(GiB)"] or 0) * 2**30 / 1e9
        fp8 = "float8" in (told + line["Quantization"]).lower()
        rows += _made({
            **LLAMA, **LLAMAS[model[1]], "gpu": "h100", "gpus": gpus[1], "tensor": tensor,
            "pipeline": pipeline, "context": context, "sequence": line["Sequence Length"] or 8192,
            "batch": replicas * int(batch[1]), "microbatch": 1 if pipeline > 1 else batch[1],
            "zero": 2 if pipeline > 1 else 3, "memory_gb": memory,
            "checkpointing": "full" if re.search("full (AC|activation)", told, re.I) else
            "selective", "matrices": "fp8" if fp8 else "bfloat16", "launch":
            "compiled" if "torch.compile" in told else "eager",
            "tokens_per_s_per_gpu": speed.replace(",", ""),
        })  # fmt: skip
    return rows


def fms(path: Path) -> Rows:
    """Llama 2 with HSDP, compiled."""
    sizes = {"7b": (32, 4096, 32, 11008), "13b": (40, 5120, 40, 13824)}
    rows: Rows = []
    for line in _lines(path):
        layers, width, heads, inner = sizes[line["model"]]
        rows += _made({
            "gpu": "a100", "gpus": line["gpus"], "layers": layers, "width": width, "heads": heads,
            "inner": inner, "gated": True, "tied": False, "vocabulary": 32000,
            "sequence": line["seq"], "batch": int(line["batch_per_gpu"]) * int(line["gpus"]),
            "zero": 3, "shard": 8, "launch": "compiled",
            "tokens_per_s_per_gpu": line["tokens_s_gpu"],
        })  # fmt: skip
    return rows


SETS: Mapping[str, tuple[str, Callable[[Path], Rows], Callable[[MeasuredRow], bool]]] = {
    "vTrain, one node": ("vtrain_ground_truth_single_a100.csv", vtrain, lambda row: True),
    "vTrain, several": ("vtrain_ground_truth_multi_a100.csv", vtrain, lambda row: True),
    "llm-foundry": ("llm_foundry_mpt.csv", llm_foundry, lambda row: True),
    "playbook, ≤ 8 nodes": (
        "ultrascale_playbook_h100.csv", playbook, lambda row: row.gpus <= 64,
    ),
    "playbook, > 8 nodes": ("ultrascale_playbook_h100.csv", playbook, lambda row: row.gpus > 64),
    "MLPerf 405B, H100": ("mlperf_training_v5.0_llm.csv", mlperf, lambda row: row.gpu == "h100"),
    "MLPerf 405B, others": ("mlperf_training_v5.0_llm.csv", mlperf, lambda row: row.gpu != "h100"),
    "torchtitan": ("torchtitan.csv", torchtitan, lambda row: True),
    "Megatron-Bridge": ("megatron_bridge_perf.csv", bridge, lambda row: True),
    "fms-fsdp": ("fms_fsdp_llama2_a100.csv", fms, lambda row: True),
}  # fmt: skip
"""Name → file, how it is read, and which of its rows."""


def _job_of(gpu: str, values: Parameters) -> Job:
    device = device_type(gpu)
    assert device.topology is not None, "the published devices have one"
    links = NominalLinks(TOPOLOGIES[device.topology], "", LinkValues.of(values))
    model = SearchModel("", 1, 1, 1, 1, 1, 1, 1)
    speed = modelled_speed(device, values, "")
    return Job(model, 1, 1, speed, links, device="cuda", receives_ahead=False,
               memory_limit_bytes=device.memory_bytes)  # fmt: skip


def _line(name: str, rows: Rows, num_fitted: int, seeds: int) -> str:
    """Return one row of the table: means over draws of the rows that are fitted."""
    found, whole = [], [row.model_copy(update={"memory_stage": "fullest"}) for row in rows]
    limits = np.array([device_type(row.gpu).memory_bytes for row in rows])
    known = np.array([row.memory_gb for row in rows]) * 1e9
    for seed in range({0: 1, 1: 4 * seeds}.get(num_fitted, seeds)):
        order = np.random.default_rng(seed).permutation(len(rows))
        fitted = [rows[i] for i in order[:num_fitted]]
        fit = fit_rows(fitted, _job_of)
        rest = [rows[i] for i in order[num_fitted:]]
        step, truth = predicted_s(rest, fit, _job_of), measured_s(rest)
        off, errors = np.abs(step / truth - 1), np.log(truth / step)
        ends = np.array([fit.interval(row.gpu, row.gpus) for row in rest])
        inside = (errors >= ends[:, 0]) & (errors <= ends[:, 1])
        ranks = spearmanr(step, truth).statistic if len(rest) > 2 else np.nan
        ratio = activation_ratio(fitted, _job_of)
        memory, fullest = (predicted_bytes(some, _job_of, ratio=ratio) for some in (rows, whole))
        fits = (fullest * (1 + PUBLISHED_MARGIN) <= limits) | (not known.any())
        told = order[num_fitted:][known[order[num_fitted:]] > 0]
        off_bytes = np.abs(memory / np.where(known > 0, known, np.inf) - 1)[told]
        worse = _regrets(rest, step, truth, fits[order[num_fitted:]]) or [np.nan]
        found.append([100 * off.mean(), 100 * np.median(off), 100 * inside.mean(), ranks,
                      np.median(worse), max(worse), 100 * off_bytes.mean() if len(told) else np.nan,
                      ])  # fmt: skip
    mean, median, share, ranks, regret, worst, memory_off = np.mean(found, axis=0)
    return (f"| {name} | {num_fitted} | {mean:.1f} % | {median:.1f} % | {share:.0f} % "
            f"| {ranks:.2f} | {regret:.2f}, {worst:.2f} "
            f"| {memory_off:.1f} % |").replace("nan %", "–").replace(
                "nan, nan", "–").replace("nan", "–")  # fmt: skip


def _regrets(rows: Rows, step: Floats, truth: Floats, fits: npt.NDArray[np.bool_]) -> list[float]:
    """Return a sample's measured time in the first choice over the least, by model and nodes.

    The first choice is what a search says to try first of those that are predicted to fit.
    """
    batch = np.array([row.batch for row in rows])
    stages = np.array([row.pipeline for row in rows])
    step, truth = np.where(fits, step, step * 1e6) / batch, truth / batch
    alike: dict[tuple[Any, int], list[int]] = {}
    for i, row in enumerate(rows):
        alike.setdefault((row.model, row.gpus), []).append(i)
    several = [each for each in alike.values() if len(each) > 2]
    return [float(truth[e[first_to_try(step[e], stages[e])]] / truth[e].min()) for e in several]


def table(folder: Path, seeds: int = 3) -> Iterator[str]:
    """Yield the table of docs/predictions.md: every set, fitted to 0, 1 and 20 of its rows."""
    yield (
        "| measured by others | rows fitted | mean error | median | inside 90 % | rank correlation "
        "| regret: median, worst | memory, mean error |"
    )
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for name, (file, read, keep) in SETS.items():
        rows = [row for row in read(folder / file) if keep(row)] if (folder / file).exists() else []
        for num_fitted in (0, 1, 20):
            if len(rows) > num_fitted + 1:
                yield _line(name, rows, num_fitted, seeds)
