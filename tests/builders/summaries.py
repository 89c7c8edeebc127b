"""Synthetic summaries for the tests of everything that reads one."""

import math
import random
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from scalebench.analysis.budget import closed_budget
from scalebench.records.rows.budget import MEASURED, Budget, RankTimes
from scalebench.records.rows.steps import OperationFigures, Prediction, Straggler
from scalebench.records.rows.strategies import CompressionFigures, ExposedEstimates, PipelineFigures
from scalebench.records.summary import Correctness, Estimate, Row, StepSamples, Summary

HOSTILE = (
    "<script>window.pwned=1</script>",
    "</script><script>window.pwned=1</script>",
    "<img src=x onerror=window.pwned=1>",
    '"><svg onload=window.pwned=1>',
    "' onmouseover='window.pwned=1",
    '<a href="javascript:window.pwned=1">go</a>',
    "{{ 7 * 7 }}{% include 'x' %}%{customdata[0]}",
    "a | b\n| --- | [link](http://evil.example) `code` @everyone",
    "\x1b[31mred\x1b]0;title\x07\u202egnp.exe\u2028line",
    "<!--<script>",
    "]]><b>bold</b>&amp;&lt;i&gt;",
    "=HYPERLINK(1)",
)


def estimate(value: float, spread: float | None = 0.03, n: int = 3) -> Estimate:
    """An estimate whose interval is ± ``spread`` of the value; None: one launch."""
    if spread is None:
        return Estimate(value=value, n=1)
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=n)


def samples(step_s: float, launches: int = 3, steps: int = 40, seed: int = 0) -> list[StepSamples]:
    """Right-skewed step times around ``step_s``, each launch at a slightly different level."""
    noise = random.Random(seed)
    found = []
    for repeat in range(launches):
        level = step_s * (1 + 0.01 * (repeat - 1))
        times = [level * math.exp(abs(noise.gauss(0, 0.03))) for _ in range(steps)]
        found.append(StepSamples(repeat=repeat, step_s=times))
    return found


VERIFIED = Correctness(
    status="verified", gradient_deviation=2.1e-7, loss_deviation=1e-8, tolerance=1e-4, num_steps=3
)


def make_row(
    case: str = "ddp-25mb",
    world_size: int = 2,
    *,
    efficiency: float = 0.856,
    spread: float | None = 0.04,
    launches: int = 3,
    base_step_s: float = 0.036,
    **changes: Any,
) -> Row:
    """A measured row; ``changes`` replace fields."""
    weak = changes.get("scaling") == "weak"
    batch = 32 * world_size if weak else 32
    step_s = base_step_s / efficiency / (1 if weak else world_size)
    n = launches if spread is not None else 1
    paces = {"step_s": step_s, "throughput": batch / step_s, "tokens_per_s": batch * 128 / step_s}
    ratios = {"speedup": efficiency * world_size, "efficiency": efficiency}
    ratios |= {"efficiency_wrapped": efficiency * 1.02, "launch_s": 0.35}
    fields: dict[str, Any] = {
        "suite": "ddp",
        "case": case,
        "strategy": "ddp",
        "strategy_settings": {"bucket_mb": 25.0, "accumulate": 1},
        "workload": "gpt-mini",
        "num_parameters": 3_257_856,
        "scaling": "strong",
        "device": "cpu",
        "backend": "gloo",
        "world_size": world_size,
        **{"global_batch": batch, "rank_batch": batch // world_size},
        **{"status": "ok", "reason": None, "oversubscribed": False},
        **{name: estimate(value, spread and spread / 2, n) for name, value in paces.items()},
        **{name: estimate(value, spread, n) for name, value in ratios.items()},
        "peak_memory_bytes": 150_000_000 + 20_000_000 // world_size,
        "memory": {"allocated_bytes": 150_000_000, "rss_bytes": 612_000_000},
        **{"loss_first": 5.553, "loss_last": 5.412, "loss_equal": 5.417, "loss_equal_steps": 38},
        "correctness": VERIFIED,
        "num_clean_steps": 40 * n,
        "stamps": [],
        "unavailable": {"exposed_comm_s": "not measured by this version"},
        "samples": samples(step_s, n, seed=len(case) * 1000 + world_size),
    }
    return Row(**{**fields, **changes})


LOSSES = {"exposed_transfer": 5.4, "wait": 9.4, "other_idle": 4.1, "compute_inflation": -3.9}
"""Points of the measured step; with an efficiency of 85.0 % they make 100."""


BUDGETED = ("losses", "doubtful", "vague", "n")


def make_budget(
    efficiency: float,
    step_s: float,
    losses: Mapping[str, float] = LOSSES,
    doubtful: Collection[str] = (),
    vague: Collection[str] = (),
    n: int = 3,
) -> Budget:
    """A loss budget.

    Args:
        efficiency: The ideal step as a part of the measured one.
        step_s: The measured step, seconds.
        losses: Part → points; what they leave is the residual.
        doubtful: Parts whose interval holds zero.
        vague: Parts of which nothing is known: their interval is four times as wide, each way.
        n: Launches; one gives no interval.
    """
    parts = {}
    wide = {**dict.fromkeys(doubtful, 1.5), **dict.fromkeys(vague, 4.0)}
    for part in MEASURED:
        value = losses.get(part.key, 0.0) / 100 * step_s
        reach = abs(value) * wide.get(part.key, 0.2)
        ends = {"low": value - reach, "high": value + reach} if n > 1 else {}
        parts[part.field] = Estimate(value=value, n=n, **ends)
    budget = closed_budget(efficiency * step_s, step_s, 0, parts)
    return budget.model_copy(update={"ranks": rank_times(step_s)})


def rank_times(step_s: float, num_ranks: int = 2) -> list[RankTimes]:
    """The traced step of every rank as a budget has it; each waits 10 % less than the one before.

    A step is 60 % computation, 30 % communication, all of it exposed, 1 % data stall, 9 % idle.
    """
    parts = {"step_s": 1.0, "compute_s": 0.6, "busy_s": 0.6, "comm_s": 0.3, "exposed_comm_s": 0.3}
    parts |= {"codec_s": 0.0, "data_stall_s": 0.01, "other_idle_s": 0.09}
    whole = {name: share * step_s for name, share in parts.items()}
    waits = [0.2 * 0.9**rank * step_s for rank in range(num_ranks)]
    return [
        RankTimes(rank=rank, **whole, wait_s=wait_s, exposed_transfer_s=0.3 * step_s - wait_s)
        for rank, wait_s in enumerate(waits)
    ]


def attributed(row: Row, **changes: Any) -> Row:
    """The same row as if its steps had been traced: 15 points of the step are accounted for.

    Args:
        row: A measured row.
        changes: Of `make_budget`; or replace fields of the row.
    """
    assert row.step_s is not None and row.efficiency is not None
    step_s = row.step_s.value
    budget = {name: changes.pop(name) for name in BUDGETED if name in changes}
    sort = {"kind": "all_reduce", "phase": "backward", "num_bytes": 1_751_040.0}
    times = {"total_s": 0.2 * step_s, "exposed_s": 0.148 * step_s, "hidden_s": 0.052 * step_s}
    exposed = estimate(0.148 * step_s)
    fields: dict[str, Any] = {
        "budget": make_budget(row.efficiency.value, step_s, **budget),
        "comm_s": estimate(0.2 * step_s),
        "exposed_comm_s": estimate(0.148 * step_s),
        "exposed_transfer_s": estimate(0.054 * step_s),
        "wait_s": estimate(0.094 * step_s),
        "compute_s": estimate(0.8 * step_s),
        "comm_compute_ratio": estimate(0.25),
        "overlap_ratio": estimate(0.26),
        "wire_bytes": 1_751_040,
        "predicted_wire_bytes": 1_751_040,
        "payload_bytes": 1_751_040,
        "trace_overhead": estimate(0.14),
        "probe_effect": Estimate(value=0.001, low=-0.004, high=0.006, n=3),
        "exposed_comm_estimates": ExposedEstimates(
            trace=exposed, differential=exposed, ddp_logger=exposed, disagree=[]
        ),
        "communication": [
            OperationFigures(**sort, **times, ordinal=None, count=2.0),
            OperationFigures(**sort, **times, ordinal=0, count=1.0),
            OperationFigures(**sort, **times, ordinal=1, count=1.0),
        ],
        "stragglers": [
            Straggler(rank=1, count=35, share=35 / 36, median_late_s=0.09 * step_s, longest_run=30),
            Straggler(rank=0, count=1, share=1 / 36, median_late_s=1e-5, longest_run=1),
        ],
        "unavailable": {"bubble_ratio": "only pipelines have a bubble"},
    }  # fmt: skip
    return row.model_copy(update={**fields, **changes})


def make_prediction(step_s: float = 0.02, **changes: Any) -> Prediction:
    """What the cost model says of a row whose step it predicts to take ``step_s``."""
    fields: dict[str, Any] = {
        "computing_s": 0.8 * step_s, "bubble_s": 0.0, "exposed_comm_s": 0.2 * step_s,
        "link_low_s": 0.99 * step_s, "link_high_s": 1.01 * step_s, "link_world_sizes": [2],
        "launch_spread": 0.01, "launch_dof": 2,
    }  # fmt: skip
    return Prediction(**{**fields, **changes})


def make_pipeline(**changes: Any) -> PipelineFigures:
    """Four ranks, one stage each, 8 microbatches by 1F1B; no passes."""
    fields: dict[str, Any] = {
        "schedule": "1f1b", "num_ranks": 4, "num_microbatches": 8, "chunks": 1, "num_pipelines": 1,
        "bubble_law": 3 / 11, "bubble_equal_stages": 3 / 11, "bubble_measured_times": 0.3,
        "idle_ratio": 0.35, "in_flight": [4, 3, 2, 1], "stages": [], "actions": None,
    }  # fmt: skip
    return PipelineFigures(**{**fields, **changes})


def make_compression(method: str = "topk", **changes: Any) -> CompressionFigures:
    """A tenth of 10 MB of gradients is sent; no time is known."""
    times = ("encode_s", "decode_s", "codec_s", "communicate_s", "transfer_s")
    fields: dict[str, Any] = {
        "method": method, "settings": {}, "collective": "all_gather", "num_buckets": 2,
        "gradient_bytes": 10_000_000, "payload_bytes": 1_000_000, "wire_bytes": 1_000_000,
        "payload_ratio": 0.1, "nominal_ratio": 0.1, "gradient_error": 0.1, "gradient_cosine": 0.9,
        "gradient_error_step": 2, **dict.fromkeys(times), "break_even_byte_per_s": None,
    }  # fmt: skip
    return CompressionFigures(**{**fields, **changes})


CATEGORY_BYTES = {
    "parameters_bytes": 13_000_000,
    "gradients_bytes": 13_000_000,
    "optimizer_bytes": 26_000_000,
    "communication_bytes": 0,
    "data_bytes": 4_000_000,
    "activations_bytes": 44_000_000,
}
"""100 MB together."""


def remembered(row: Row, predicted: int | None = 98_000_000, **changes: int | None) -> Row:
    """The same row with a peak of 100 MB by category; ``changes`` replace entries of memory."""
    memory = {**CATEGORY_BYTES, "allocated_bytes": 100_000_000, "rss_bytes": 612_000_000}
    fields = {"memory": {**memory, **changes}, "predicted_memory_bytes": predicted}
    return row.model_copy(update={**fields, "peak_memory_bytes": 100_000_000})


def remembered_rows() -> list[Row]:
    """Plain and DDP with their memory; one peak is not predicted, and says why."""
    unknown = {"predicted_memory_bytes": "the state of the optimizer Lion is not known"}
    return [
        remembered(make_plain(), 140_000_000),
        remembered(make_row(world_size=1), 99_990_000),
        remembered(make_row(world_size=2), 98_460_000, communication_bytes=13_000_000,
                   activations_bytes=31_000_000),
        remembered(make_row("ddp-1mb", 2, unavailable=unknown), None),
    ]  # fmt: skip


def traced_rows() -> list[Row]:
    """Plain, and two DDP cases on 1 and 2 ranks; one budget does not close."""
    alone = {"compute_inflation": 2.1}
    return [
        attributed(make_plain(), losses={}),
        attributed(make_row("ddp-25mb", 1, efficiency=0.979, spread=0.01), losses=alone),
        attributed(make_row("ddp-25mb", 2, efficiency=0.85), doubtful=["wait"]),
        attributed(make_row("ddp-1mb", 1, efficiency=0.95, spread=0.01), losses={}),
        attributed(make_row("ddp-1mb", 2, efficiency=0.85)),
    ]


def make_plain(**changes: Any) -> Row:
    """The plain baseline: one process, no process group."""
    fields: dict[str, Any] = {
        "case": "plain",
        "world_size": 1,
        "efficiency": 1.0,
        "strategy": "plain",
        "strategy_settings": {},
        "backend": None,
        "correctness": Correctness(status="reference"),
        "efficiency_wrapped": None,
    }
    return make_row(**{**fields, **changes})


def make_missing(
    case: str = "ddp-25mb",
    world_size: int = 8,
    status: str = "skipped",
    reason: str | None = "8 ranks asked for, 2 cores here",
    **changes: Any,
) -> Row:
    """A row without a measurement."""
    nothing: dict[str, Any] = dict.fromkeys(
        (
            "step_s", "throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped",
            "peak_memory_bytes", "loss_first", "loss_last", "loss_equal",
            "loss_equal_steps", "correctness", "launch_s",
        )
    )  # fmt: skip
    nothing |= {"num_clean_steps": 0, "samples": [], "memory": {}}
    row = make_row(case, world_size, status=status, reason=reason, **changes)
    return row.model_copy(update=nothing)


def make_summary(rows: list[Row] | None = None, **changes: Any) -> Summary:
    """A run; without rows, a usual one: plain, and two DDP cases on 1, 2 and 4 CPU ranks."""
    fields: dict[str, Any] = {
        "run_id": "20261121T020130Z_ddp_cpu_07469a1",
        "created": "2026-11-21T02:01:30Z",
        "status": "complete",
        "scalebench_version": "0.1.0",
        "reproduce": "scalebench run ddp --gpus 1,2,4,8 --repeats 3 --workload gpt-mini",
        "environment": {
            "host": "bench-01",
            "cpu": {"model": "AMD EPYC 7B13", "cores": 2, "affinity": [0, 1]},
            "software": {"python": "3.11.2", "torch": "2.13.0+cpu", "kernel": "6.1.0"},
            "variables": {"OMP_NUM_THREADS": "1", "NCCL_DEBUG": None},
            "devices": [],
        },
        "notices": ["CPU ranks over gloo (no CUDA device)"],
        "rows": usual_rows() if rows is None else rows,
    }
    return Summary(**{**fields, **changes})


def usual_rows() -> list[Row]:
    """Plain, and two DDP cases; oversubscribed, skipped, oom and unsteady rows among them."""
    small = {"bucket_mb": 1.0, "accumulate": 1}
    return [
        make_plain(),
        make_row("ddp-25mb", 1, efficiency=0.979, spread=0.01),
        make_row("ddp-25mb", 2, efficiency=0.856),
        make_row("ddp-25mb", 4, efficiency=0.41, oversubscribed=True),
        make_missing("ddp-25mb", 8),
        make_row("ddp-1mb", 1, efficiency=0.961, spread=0.01, strategy_settings=small),
        make_row("ddp-1mb", 2, efficiency=0.77, strategy_settings=small, stamps=["unsteady"]),
        make_missing(
            "ddp-1mb",
            4,
            "oom",
            "rank 3: out of memory: tried to allocate 2.00 GiB",
            strategy_settings=small,
        ),
        make_missing("ddp-1mb", 8, strategy_settings=small),
    ]


def gpu_rows() -> list[Row]:
    """Four cases on 1 to 8 GPUs under weak scaling; without energy and arithmetic."""
    loss = {"ddp-25mb": 0.02, "ddp-1mb": 0.035, "ddp-accumulate-4": 0.008, "ddp-static": 0.021}
    on_gpu = {"device": "cuda", "scaling": "weak", "base_step_s": 0.182}
    model = {"backend": "nccl", "workload": "gpt-124m", "num_parameters": 124_439_808}
    model |= {"peak_memory_bytes": 21_400_000_000, **on_gpu}
    rows = [make_plain(**on_gpu)]
    for index, (case, per_rank) in enumerate(loss.items()):
        for n in (1, 2, 4, 8):
            told = {
                "efficiency": 0.992 - per_rank * (n - 1) ** 0.8,
                "spread": 0.008 + 0.003 * index,
            }
            rows.append(make_row(case, n, **told, **model))
    return rows


def rated_rows() -> list[Row]:
    """The same with what the devices used: 38 % of their arithmetic, 1.6 J for each sample."""
    return [
        row.model_copy(update={"mfu": estimate(0.384, 0.01), "energy_j_per_sample": estimate(1.6)})
        for row in gpu_rows()
    ]


def many_rows(cases: int = 12, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> list[Row]:
    """A full suite: every case at every size."""
    rows = [make_plain()]
    for index in range(cases):
        for n in sizes:
            efficiency = 0.99 / (1 + (0.01 + 0.004 * index) * (n - 1))
            rows.append(make_row(f"ddp-variant-{index:02d}", n, efficiency=efficiency, spread=0.02))
    return rows


def hostile_summary(attacks: Sequence[str] = HOSTILE) -> Summary:
    """A run in which every string is an attack."""
    rows = []
    memory = {**CATEGORY_BYTES, **dict.fromkeys(attacks, 1)}
    for index, attack in enumerate(attacks):
        changes: dict[str, Any] = {
            "suite": attacks[index % 2],
            **dict.fromkeys(("strategy", "workload", "backend"), attack),
            "stamps": [attack, f"foreign load: {attack}"],
            "memory": memory,
            "unavailable": {attack: attack, "predicted_memory_bytes": attack},
            "strategy_settings": {attack: attack, "bucket_mb": attack},
            "budget": {"ideal_s": attack, "closes": attack},
            "communication": [
                {"kind": attack, "ordinal": ordinal, "phase": attack, "count": 1, "num_bytes": 1,
                 "total_s": 0.1, "exposed_s": 0.1, "hidden_s": 0.0}
                for ordinal in (None, 0)
            ],
            "stragglers": [{"rank": attack, "share": attack}],
            "exposed_comm_estimates": {attack: attack, "disagree": [[attack, attack]]},
        }  # fmt: skip
        broken = Correctness(status="unverified", reason=attack)
        rows.append(make_row(f"{attack}{index}", 1, correctness=broken, **changes))
        told = make_row(f"{attack}{index}", 2, correctness=broken, **changes)
        rows.append(told.model_copy(update={"budget": make_budget(0.856, 0.021)}))
        rows.append(make_missing(f"{attack}{index}", 4, "failed", attack, **changes))
    names = ("run_id", "created", "status", "scalebench_version", "reproduce")
    whole = dict.fromkeys(names, "".join(attacks))
    environment = {attack: {attack: [attack, {attack: attack}]} for attack in attacks}
    return make_summary(rows, environment=environment, notices=list(attacks), **whole)


def predicted_row(row, error=0.02):
    """The row with a prediction, two operations of which one was measured."""
    assert row.step_s is not None
    step_s = row.step_s.value * (1 + error)
    operation = {"op": "all_reduce", "size_bytes": 1_000_000, "ready_s": 0.01, "low_s": 0.009,
                 "high_s": 0.011, "predicted_s": 0.010}  # fmt: skip
    told = make_prediction(
        step_s, efficiency=0.85 / (1 + error), low_s=step_s * 0.9, high_s=step_s * 1.1,
        operations=[{**operation, "measured_s": 0.0104}, {**operation, "measured_s": None}],
    )  # fmt: skip
    changes = {"predicted_step_s": step_s, "prediction_error": error, "prediction": told}
    return row.model_copy(update=changes)
