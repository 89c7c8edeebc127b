"""Synthetic summaries for the tests of everything that reads one."""

import math
import random
from typing import Any

from scalebench.summary import Correctness, Estimate, Row, StepSamples, Summary

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
        "global_batch": batch,
        "rank_batch": batch // world_size,
        "status": "ok",
        "reason": None,
        "oversubscribed": False,
        "step_s": estimate(step_s, spread and spread / 2, n),
        "throughput": estimate(batch / step_s, spread and spread / 2, n),
        "tokens_per_s": estimate(batch * 128 / step_s, spread and spread / 2, n),
        "speedup": estimate(efficiency * world_size, spread, n),
        "efficiency": estimate(efficiency, spread, n),
        "efficiency_wrapped": estimate(efficiency * 1.02, spread, n),
        "peak_memory_bytes": 150_000_000 + 20_000_000 // world_size,
        "memory": {"allocated_bytes": 150_000_000, "rss_bytes": 612_000_000},
        "loss_first": 5.553,
        "loss_last": 5.412,
        "correctness": Correctness(
            status="verified",
            gradient_deviation=2.1e-7,
            loss_deviation=1e-8,
            tolerance=1e-4,
            num_steps=3,
        ),
        "launch_s": estimate(0.35, spread, n),
        "num_clean_steps": 40 * n,
        "stamps": [],
        "unavailable": {"exposed_comm_s": "not measured by this version"},
        "samples": samples(step_s, n, seed=len(case) * 1000 + world_size),
    }
    return Row(**{**fields, **changes})


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
            "peak_memory_bytes", "loss_first", "loss_last", "correctness", "launch_s",
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
    """Four cases on 1 to 8 GPUs under weak scaling."""
    loss = {"ddp-25mb": 0.02, "ddp-1mb": 0.035, "ddp-accumulate-4": 0.008, "ddp-static": 0.021}
    rows = [make_plain(device="cuda", scaling="weak", base_step_s=0.182)]
    for index, (case, per_rank) in enumerate(loss.items()):
        for world_size in (1, 2, 4, 8):
            rows.append(
                make_row(
                    case,
                    world_size,
                    efficiency=0.992 - per_rank * (world_size - 1) ** 0.8,
                    spread=0.008 + 0.003 * index,
                    scaling="weak",
                    device="cuda",
                    backend="nccl",
                    base_step_s=0.182,
                    workload="gpt-124m",
                    num_parameters=124_439_808,
                    peak_memory_bytes=21_400_000_000,
                )
            )
    return rows


def many_rows(cases: int = 12, sizes: tuple[int, ...] = (1, 2, 4, 8, 16, 32)) -> list[Row]:
    """A full suite: every case at every size."""
    rows = [make_plain()]
    for index in range(cases):
        rows += [
            make_row(
                f"ddp-variant-{index:02d}",
                world_size,
                efficiency=0.99 / (1 + (0.01 + 0.004 * index) * (world_size - 1)),
                spread=0.02,
            )
            for world_size in sizes
        ]
    return rows


def hostile_summary() -> Summary:
    """A run in which every string is an attack."""
    rows = []
    for index, attack in enumerate(HOSTILE):
        changes: dict[str, Any] = {
            "suite": HOSTILE[index % 2],
            "strategy": attack,
            "workload": attack,
            "backend": attack,
            "stamps": [attack],
            "unavailable": {attack: attack},
            "strategy_settings": {attack: attack, "bucket_mb": attack},
        }
        broken = Correctness(status="unverified", reason=attack)
        rows.append(make_row(f"{attack}{index}", 1, correctness=broken, **changes))
        rows.append(make_row(f"{attack}{index}", 2, correctness=broken, **changes))
        rows.append(make_missing(f"{attack}{index}", 4, "failed", attack, **changes))
    everything = "".join(HOSTILE)
    return make_summary(
        rows,
        run_id=everything,
        created=everything,
        status=everything,
        scalebench_version=everything,
        reproduce=everything,
        environment={attack: {attack: [attack, {attack: attack}]} for attack in HOSTILE},
        notices=list(HOSTILE),
    )
