"""Rows in every state of which something is said: name → a run."""

from collections.abc import Sequence
from typing import Any

from scalebench.records.rows import strategies
from scalebench.records.rows.budget import ComputeInflation
from scalebench.records.rows.race import LockstepFigures, RaceFigures, RankShares
from scalebench.records.rows.script import (
    HostWaitPlace,
    HostWaits,
    OutsideSteps,
    ScriptFacts,
    Wrapper,
)
from scalebench.records.rows.steps import AxisFigures, OperationFigures, RankExcess, Straggler
from scalebench.records.run import ImpreciseRow, PrecisionReached
from scalebench.records.summary import Correctness, Row, Summary
from scalebench.stats import Estimate
from tests.builders.rows.recoveries import restore, rows_with, save
from tests.builders.summaries import (
    LOSSES,
    attributed,
    estimate,
    make_compression,
    make_missing,
    make_pipeline,
    make_plain,
    make_prediction,
    make_row,
    make_summary,
    remembered,
    remembered_rows,
)


def figures(time_s, samples, **changes):
    """A race that the baseline ends after 8 s and 2048 samples."""
    measured = {
        "time_to_target_s": time_s,
        "samples_to_target": samples,
        "statistical_efficiency": 2048 / samples,
        "hardware_efficiency": 8 * samples / 2048 / time_s / 2,
        "speedup_to_target": 8 / time_s,
    }
    measured |= {"final_loss": 2.1, "loss_at_equal_time": 2.3, "noise_scale": 40}
    fields = {name: estimate(value, 0.02) for name, value in measured.items()}
    fields |= {"target_loss": 2.476, "target_from": "plain after 2048 samples", "samples": 4096}
    fields |= {"baseline": ("plain", 1), "num_seeds": 3, "num_reached": 3, "equal_time_s": 6.0}
    fields |= {"predicted_statistical_efficiency": 0.8}
    return RaceFigures(**{**fields, **changes})


PARAMETERS = 4_000_000
LOADED = "foreign load: 0.41 processors busy with other programs"
DEVIATES = Correctness(status="deviates", gradient_deviation=0.02, tolerance=1e-4)
UNVERIFIED = Correctness(status="unverified", reason="dropout is on")
WIDE = Estimate(value=0.8, low=0.41, high=1.18, n=3)
SURE = {"efficiency": 0.85, "spread": 0.02}
LATE = [Straggler(rank=3, count=97, share=0.97, median_late_s=0.009, longest_run=40)]
TRANSFER, IDLE = {"exposed_transfer": 15.0}, {"other_idle": 15.0}
COPYING = Wrapper(
    kind="DistributedDataParallel",
    gradient_as_bucket_view=False,
    find_unused_parameters=True,
    unused_bytes=0,
)


def changed(row: Row, **fields: Any) -> Row:
    return row.model_copy(update=fields)


def lossy(losses: dict[str, float], doubtful: Sequence[str] = (), **changes: Any) -> Row:
    """A DDP row on 2 ranks whose budget certainly loses what ``losses`` says."""
    fields = {**SURE, **{k: changes.pop(k) for k in ("efficiency", "spread") if k in changes}}
    changes = {"stragglers": [], **changes}
    return attributed(make_row(**fields), losses=losses, doubtful=doubtful, **changes)


def predicted(efficiency: float = 0.84, error: float | None = 0.012, **what_ifs: Any) -> dict:
    """A prediction with changes, as the summary has it: name → (value, efficiency)."""
    same = {"bucket_mb": None, "gradient_bits": None, "times_bandwidth": 1.0}
    told = [
        {**same, name: value, "efficiency": better, "gain": 1 - efficiency / better,
         "change": name, "step_s": 0.02}
        for name, (value, better) in what_ifs.items()
    ]  # fmt: skip
    return {
        "prediction_error": error,
        "prediction": make_prediction(efficiency=efficiency, what_if=told, typical_error=0.01),
    }


def slower_by(field: str) -> Row:
    """A row whose computation is slower by 15 points, 12 of them certainly by one part."""
    row = lossy({"compute_inflation": 15.0})
    parts = dict.fromkeys(("smaller_batch_s", "contention_s", "own_operators_s"), (1.0, 2.0))
    found = {
        name: Estimate(value=middle, low=middle - width, high=middle + width, n=3).scaled(
            row.budget.measured_s / 100
        )
        for name, (middle, width) in {**parts, field: (12.0, 1.0)}.items()
    }
    return changed(row, budget=changed(row.budget, inflation=ComputeInflation(**found)))


def slow_to_load(**changes: Any) -> Row:
    """A row whose rank 1 waits for its batches, and the others for rank 1."""
    late = [Straggler(rank=1, count=40, share=1.0, median_late_s=0.009, longest_run=40)]
    row = lossy({"wait": 15.0}, stragglers=late, **changes)
    waiting, own = row.budget.ranks
    own = changed(own, wait_s=0.0, data_stall_s=0.151)
    return changed(row, budget=changed(row.budget, ranks=[waiting, own]))


def noisy(**changes: Any) -> Row:
    """A row of which nothing is known but what ``changes`` says."""
    fields = {"stragglers": [], "num_parameters": PARAMETERS, **changes}
    row = make_row(efficiency=0.8, spread=0.6)
    return attributed(row, losses={"wait": 15.0}, doubtful=["wait"], **fields)


def ddp(**settings: Any) -> dict[str, Any]:
    settings = {"bucket_bytes": 25 * 2**20, "find_unused_parameters": False, **settings}
    return {"wrappers": [Wrapper(kind="DistributedDataParallel", **settings)]}


def sent(count: float, times: int = 1, exposed_s: float = 0.004) -> dict[str, Any]:
    """All-reduces of a step that send the gradients so often."""
    operations = OperationFigures(
        kind="all_reduce", ordinal=None, phase="backward", count=count,
        num_bytes=4 * PARAMETERS * times, total_s=exposed_s, exposed_s=exposed_s, hidden_s=0.0,
    )  # fmt: skip
    return {"communication": [operations], "exposed_comm_s": estimate(exposed_s, 0.0, 1)}


def excess(part: str, own_s: float = 0.035, others_s: float = 0.0006, **counts: Any) -> dict:
    times = {"own_s": own_s, "others_s": others_s, "num_blocks": 48, "num_longer": 47, **counts}
    late = Straggler(rank=1, count=92, share=0.92, median_late_s=0.0208, longest_run=40)
    return {"rank_excess": [RankExcess(part=part, rank=1, **times)], "stragglers": [late]}


def waits(seconds: float | None) -> dict[str, Any]:
    place = HostWaitPlace(file="train.py", line=37, call=".item()", calls=8)
    found = HostWaits(per_step=1.0, steps=8, places=[place], seconds_per_step=seconds)
    return {"script": ScriptFacts(host_waits=found)}


def script(**facts: Any) -> dict[str, Any]:
    return {"script": ScriptFacts(**facts)}


def loader(wait_s: float, world_size: int = 2, **fields: Any) -> Row:
    facts = script(batch_wait_s=wait_s, loader={"num_workers": 4})
    return make_row("script", world_size=world_size, **facts, **fields)


def outside(evaluation_s: float | None, checkpoint_s: float | None) -> Row:
    gaps = OutsideSteps(
        seconds=3.0, share=0.005, num_gaps=1, largest=[], evaluation_s=evaluation_s,
        checkpoint_s=checkpoint_s,
    )  # fmt: skip
    return make_row(script=ScriptFacts(), outside_step=gaps)


TWO_STEPS = {"num_blocks": 2, "num_longer": 2, "certain": False}
A, B = make_row("a", efficiency=0.9), make_row("b", efficiency=0.7)


def neighbour(**changes: Any) -> list[Row]:
    """A row that sends much, and another case that may be the better one."""
    fields = {"efficiency": 0.95, "spread": 0.02, **changes}
    return [lossy(TRANSFER), make_row("other", **fields)]


def memories(*peaks: float | None) -> list[Row]:
    return [
        make_row(case, efficiency=efficiency, peak_memory_bytes=peak and int(peak))
        for case, efficiency, peak in zip("abc", (0.9, 0.7, 0.5), peaks, strict=True)
    ]


def compressed(low: float, high: float, **changes: Any) -> list[Row]:
    ratio = Estimate(value=(low + high) / 2, low=low, high=high, n=3)
    told = make_compression("topk", step_ratio_to_none=ratio, **changes)
    rows = [("none", make_compression("none")), ("topk", told)]
    return [make_row(case, compression=one, strategy="compressed") for case, one in rows]


def framework(case: str, ms: tuple[float, float, float], ratio: Any = None, **changes: Any) -> Row:
    value, low, high = (1e-3 * one for one in ms)
    facts = strategies.FrameworkFacts(versions={"deepspeed": "0.19.8"}, untested=[], settings={})
    if ratio is not None:
        middle, least, most = ratio
        found = Estimate(value=middle, low=least, high=most, n=3 if least else 1)
        fastest = ("frameworks", "fast", 2)
        changes["against_fastest"] = strategies.AgainstFastest(fastest=fastest, step_ratio=found)
    fields = {"suite": "frameworks", "strategy": "deepspeed", "correctness": None,
              "peak_memory_bytes": 20_000_000, "framework": facts, **changes}  # fmt: skip
    return make_row(case, step_s=Estimate(value=value, low=low, high=high, n=3), **fields)


FAST = framework("fast", (10, 9, 11), (1, 1, 1))
NEAR = framework("near", (10.2, 9.2, 11.2), (1.02, 0.99, 1.05))
BEHIND = framework("behind", (10.8, 9.8, 11.8), (1.08, 1.05, 1.11))
UNPAIRED = [framework("slow", (20, 19, 21)), framework("near", (11.5, 10.5, 12.5)),
            framework("fast", (10, 9, 11))]  # fmt: skip
HOROVOD = strategies.FrameworkFacts(
    versions={"horovod": "0.28.1"}, uncounted_memory="its fusion buffer"
)
NEWER = strategies.FrameworkFacts(
    versions={"accelerate": "1.15.0", "deepspeed": "9.0"},
    untested=["deepspeed"],
    tested={"accelerate": "1.15.0", "deepspeed": "0.19.8"},
)
UNKNOWN = strategies.FrameworkFacts(versions={"lightning": None}, untested=["lightning"])
MISSED = figures(
    1, 1, num_reached=1, lowest_loss=2.625,
    unavailable={"time_to_target_s": "2 of 3 seeds did not reach the target within 4096 samples"},
    **dict.fromkeys(("time_to_target_s", "samples_to_target", "statistical_efficiency",
                     "hardware_efficiency", "speedup_to_target")),
)  # fmt: skip


def raced(**races: Any) -> list[Row]:
    rows = [make_plain(race=figures(8.0, 2048))]
    return rows + [make_row(name, 2, race=race) for name, race in races.items()]


def noise_of_steps(low: float | None, high: float | None) -> list[Row]:
    of_steps = Estimate(value=10.0, low=low, high=high, n=1 if low is None else 3)
    return raced(large=figures(4.0, 2560, noise_scale_of_steps=of_steps))


def without_lockstep(time_s: float, samples: float) -> list[Row]:
    waiting = [RankShares(rank=0, compute=0.35, exchange=0.05, wait=0.6),
               RankShares(rank=1, compute=0.95, exchange=0.05, wait=0.0)]  # fmt: skip
    fresh = [RankShares(rank=0, compute=0.97, exchange=0.02, wait=0.01, num_batches=384),
             RankShares(rank=1, compute=0.9, exchange=0.1, wait=0.0, num_batches=128)]  # fmt: skip
    stale = {0: 256, 1: 200, 3: 56}
    told = LockstepFigures(ranks=fresh, traced=False, staleness=stale, num_dropped=7)
    found = figures(time_s, samples)
    server = make_row("server", 2, strategy="parameter-server", race=found, lockstep=told)
    own = LockstepFigures(ranks=waiting, traced=True)
    of_ddp = make_row("ddp", 2, race=figures(8, 2048), lockstep=own)
    return [make_plain(race=figures(8, 2048)), of_ddp, server]


def experts(token_s: tuple[float | None, ...] = (1e-6, 1e-6), times_mean: float = 1.2) -> Row:
    ranks = [
        strategies.ExpertRank(rank=rank, first_expert=2 * rank, num_experts=2, tokens=100.0,
                   experts_s=None if seconds is None else 100 * seconds, token_s=seconds)
        for rank, seconds in enumerate(token_s)
    ]  # fmt: skip
    found = strategies.ExpertFigures(
        num_experts=4, ranks_per_group=2, tokens=[[60.0, 40.0, 50.0, 50.0]], imbalance=1.3,
        rank_imbalance=1.1, dropped_share=0.125, all_to_all_share=0.25, ranks=ranks,
        busiest=strategies.BusiestExpert(layer=0, expert=3, times_mean=times_mean),
    )  # fmt: skip
    return make_row("expert", experts=found)


def crossing(*axes: tuple[str, float, float, float]) -> Row:
    """Communication by axis: name, bytes on the wire, seconds, exposed seconds."""
    found = [
        AxisFigures(axis=name, num_ranks=2, count=1.0, num_bytes=None, wire_bytes=wire_bytes,
                    total_s=total_s, exposed_s=exposed_s, wait_s=None)
        for name, wire_bytes, total_s, exposed_s in axes
    ]  # fmt: skip
    return make_row(world_size=4, axes=found)


def wrapped(*wrappers: dict[str, Any]) -> Row:
    """The row of a script that wraps its model so."""
    return make_row("script", strategy="script", wrappers=[Wrapper(**one) for one in wrappers])


MESH = {"kind": "DTensor", "mesh": {"dp": 2, "tp": 4}}
STRIDED = ["_StridedShard(dim=0, sf=4)", "Shard(dim=0)"]


def imprecise(*rows: tuple[str, float, float]) -> Summary:
    """A run whose rows are wider than was asked for: case, half width, seconds to go on."""
    told = [
        ImpreciseRow(suite="ddp", case=case, world_size=2, half_width=half, more_s=more_s)
        for case, half, more_s in rows
    ]
    reached = PrecisionReached(half_width=0.03, budget_s=90.0, num_rows=6, imprecise=told)
    return make_summary([make_plain(), make_row()], precision=reached)


def apart(trace_s: float, difference_s: float) -> strategies.ExposedEstimates:
    return strategies.ExposedEstimates(
        trace=estimate(trace_s),
        differential=estimate(difference_s),
        disagree=[["trace", "differential"]],
    )


OPEN = attributed(make_row(efficiency=0.85))
NO_EFFICIENCY = {"efficiency": None, "unavailable": {"efficiency": "plain failed"}}
SLOW_B = make_row("b", efficiency=0.3)
STATES: dict[str, Summary | Row | list[Row]] = {
    # What is said of a case
    "oversubscribed beside": [make_row(), make_row(world_size=4, oversubscribed=True)],
    "a size out of memory": [make_row(), make_missing(status="oom", reason="because")],
    "a size that failed": [make_row(), make_missing(status="failed", reason="because")],
    "a size that was skipped": [make_row(), make_missing(reason="because")],
    "nothing measured": make_missing(status="failed", reason="no"),
    "one rank alone": make_row(world_size=1),
    "too wide to say": changed(make_row(), efficiency=WIDE),
    "the wrapper costs": [make_row(world_size=1, efficiency=0.9, spread=0.01), make_row()],
    "the wrapper may cost": [make_row(world_size=1, efficiency=0.99, spread=0.03), make_row()],
    "wrong result": lossy({}, correctness=DEVIATES),
    "wrong result of the best": [make_row("a", efficiency=0.99, correctness=DEVIATES), B],
    "unverified": make_row(correctness=UNVERIFIED),
    "other programs": make_row(stamps=[LOADED]),
    "other programs beside the baseline": make_summary([make_plain(stamps=[LOADED]), make_row()]),
    "power cap": make_row(stamps=["throttled: power cap in 38.2 %", "clocks differ: a"]),
    "swap": make_row(stamps=["swap: 1 MB"]),
    "causes in doubt": make_row(stamps=["budget open"]),
    "step in doubt": changed(make_row(stamps=["unsteady"]), efficiency=None),
    "no efficiency": changed(make_row(), **NO_EFFICIENCY),
    "above ideal": [make_row("a", 1, efficiency=1.2, spread=0.05),
                    make_row("b", 1, efficiency=1.02),
                    make_row("c", 1, efficiency=1.2, spread=None)],
    "neither evaluated nor saved": outside(0.0, 0.0),
    "not saved": outside(2.0, 0.0),
    "evaluated and saved": outside(2.0, 1.0),
    "evaluation not known": outside(None, None),
    "one reason for several": make_summary([
        make_plain(),
        *(make_missing(case, n, reason="gloo cannot do it") for case in "ab" for n in (1, 2, 4)),
        make_missing("c", 2, reason="gloo cannot do it"),
        make_missing("d", 2, reason="needs 4 ranks"),
        make_missing("d", 4, status="failed", reason="needs 4 ranks"),
    ]),
    # What a script is wrapped in
    "DDP": wrapped({"kind": "DistributedDataParallel", "bucket_bytes": 2**20,
                    "find_unused_parameters": True, "hook": "fp16_compress_hook"}),
    "DeepSpeed": wrapped({"kind": "DeepSpeedEngine", "stage": 2}),
    "FSDP1": wrapped({"kind": "FullyShardedDataParallel", "sharding": "SHARD_GRAD_OP"}),
    "FSDP2": wrapped({"kind": "FSDPModule", "mesh": {"dp": 2}},
                     {"kind": "DTensor", "mesh": {"dp": 2}, "placements": ["Shard(dim=0)"]}),
    "FSDP2 on a mesh": wrapped({**MESH, "kind": "FSDPModule"}, {**MESH, "placements": STRIDED}),
    "pipeline": wrapped(
        {"kind": "_PipelineStageBase", "stage": 0, "of": 4},
        {"kind": "_PipelineSchedule", "schedule": "Schedule1F1B", "microbatches": 8}),
    # Which case is best
    "best for certain": [A, B],
    "best perhaps": [A, make_row("b", efficiency=0.88), make_row("c", efficiency=0.5)],
    "slower than one rank": [make_row("a", efficiency=0.4), SLOW_B],
    "one case, slower than one rank": make_row("a", efficiency=0.4),
    "one case of one launch": make_row("a", efficiency=0.9, spread=None),
    "one is faster than one rank": [make_row("a", efficiency=0.52), SLOW_B],
    "best of one launch": [make_row("a", efficiency=0.9, spread=None), make_row("b")],
    "one case has one launch": [A, make_row("b", efficiency=0.2, spread=None)],
    "all cases one launch": [make_row(name, spread=None) for name in "ab"],
    "other workloads": [A, make_row("b", workload="cnn")],
    "less memory": memories(100e6, 60e6, 90e6),
    "least memory is the best": memories(60e6, 100e6, 90e6),
    "as much memory": memories(100e6, 97e6, 99e6),
    "a memory not known": memories(100e6, None, 90e6),
    "memory predicted": make_summary(remembered_rows()),
    "memory predicted of one": [remembered(make_row(), 104_000_000)],
    "compression pays": compressed(0.7, 0.9),
    "compression may pay": compressed(0.7, 1.1),
    "compression does not pay": compressed(1.1, 1.3),
    "compression never pays": compressed(
        1.1, 1.3, break_even_byte_per_s=Estimate(value=0.0, low=0.0, high=0.0, n=3)
    ),
    # Where the loss goes
    "losses": OPEN,
    "loss in doubt": attributed(make_row(efficiency=0.85), doubtful=["wait"]),
    "two losses in doubt": attributed(
        make_row(efficiency=0.85), doubtful=["wait", "compute_inflation"]
    ),
    "all losses in doubt": attributed(make_row(efficiency=0.85), doubtful=LOSSES),
    "all losses vague": attributed(make_row(efficiency=0.85), vague=LOSSES),
    "losses of one launch": attributed(make_row(efficiency=0.85, spread=None), n=1),
    "gap in doubt": attributed(make_row(efficiency=0.85, spread=0.3)),
    "parts leave some": attributed(make_row(efficiency=0.85), losses={"wait": 10.0}),
    "parts are too many": attributed(make_row(efficiency=0.85), losses={"wait": 18.0}),
    "steps drifted": changed(OPEN, budget=changed(OPEN.budget, closes=False, drift=0.4)),
    "traced without a budget": changed(OPEN, budget=None, unavailable={"budget": "plain failed"}),
    "estimates disagree": attributed(
        make_row(efficiency=0.85), exposed_comm_estimates=apart(2.1e-3, 0.4e-3)
    ),
    "estimates disagree by little": attributed(
        make_row(efficiency=0.85), exposed_comm_estimates=apart(21e-6, 4e-6)
    ),
    "waits not known": changed(
        OPEN, wait_s=None, exposed_transfer_s=None, unavailable={"wait_s": "in traced step 3"}
    ),
    # What to try
    "oversubscribed": lossy({}, oversubscribed=True),
    "too short": lossy({}, spread=None, budget=None, stamps=["ended early: after 700 steps"]),
    "one launch": lossy({}, spread=None),
    "one launch and a late rank": slow_to_load(spread=None),
    "interval too wide": lossy({}, efficiency=0.8, spread=0.6),
    "nothing to gain": lossy({}, efficiency=0.99, spread=0.01),
    "budget open": lossy({"wait": -40.0}),
    "other buckets": lossy(TRANSFER, **predicted(bucket_mb=(1.0, 0.91))),
    "within the model's error": lossy(TRANSFER, **predicted(error=0.09, bucket_mb=(1.0, 0.91))),
    "model without a score": lossy(TRANSFER, **predicted(error=None, bucket_mb=(1.0, 0.91))),
    "fewer bits": lossy(TRANSFER, **predicted(bucket_mb=(1.0, 0.842), gradient_bits=(16, 0.9))),
    "faster link": lossy(TRANSFER, **predicted(times_bandwidth=(4.0, 0.95))),
    **{
        f"send less often: {name}": lossy(TRANSFER, strategy=name, strategy_settings=settings)
        for name, settings in (("ddp", {"accumulate": 4}), ("fsdp", {}), ("tensor", {}))
    },
    "late rank": lossy({"wait": 15.0}, stragglers=LATE),
    "late rank loads": slow_to_load(),
    "uneven ranks": lossy({"wait": 15.0}),
    "small share": lossy({"compute_inflation": 15.0}),
    "contention": slower_by("contention_s"),
    "own operators": slower_by("own_operators_s"),
    "own operators of FSDP": changed(slower_by("own_operators_s"), strategy="fsdp"),
    "more microbatches": lossy({"bubble": 15.0}, pipeline=make_pipeline()),
    "other schedule": lossy({"bubble": 15.0}),
    "cheaper codec": lossy({"codec": 15.0}),
    "copy during computation": lossy({"copies": 15.0}),
    "more workers": lossy({"data_stall": 15.0}),
    "bucket views": lossy({"compute_inflation": 15.0}, wrappers=[COPYING], **script()),
    "longer steps": lossy(IDLE),
    "more launches": lossy({"wait": 15.0}, vague=["wait"]),
    "largest loss": lossy({"wait": 10.0, "data_stall": 5.0}),
    "largest loss in doubt": lossy({"wait": 10.0, "data_stall": 5.0}, doubtful=["wait"]),
    "largest loss vague": lossy({"wait": 10.0, "data_stall": 5.0}, vague=["wait"]),
    "better neighbour": neighbour(),
    **{
        f"no better neighbour: {', '.join(changes)}": neighbour(**changes)
        for changes in (
            {"efficiency": 0.87},
            {"spread": None},
            {"strategy": "fsdp"},
            {"world_size": 4},
            {"workload": "cnn"},
            {"correctness": DEVIATES},
            {"oversubscribed": True},
            {"compression": make_compression("noop")},
        )
    },
    # What is certain at any noise
    "slow loader": noisy(**excess("data_stall")),
    "slow loader of one rank as well": [loader(0.004, **excess("data_stall", 0.010, 0.004)),
                                        loader(0.009, world_size=1)],
    "slow loader of several ranks": [loader(0.004, **excess("data_stall", 0.010, 0.004)),
                                     loader(0.001, world_size=1)],
    "slow rank": noisy(**excess("compute", 0.04, 0.02)),
    "rank that is late": noisy(**excess("lateness", 0.02, 0.001)),
    "rank that is later than all is lost": noisy(**excess("lateness", 0.07, 0.0)),
    "late in two steps": noisy(**excess("lateness", 0.02, 0.0, **TWO_STEPS)),
    "late in two steps, other programs": noisy(
        **excess("lateness", 0.02, 0.0, **TWO_STEPS), stamps=["foreign load: x"]
    ),
    "late in two steps unlike the others": changed(
        OPEN, budget=changed(OPEN.budget, closes=False, drift=0.4),
        **excess("lateness", 0.02, 0.0, **TWO_STEPS)
    ),
    "too few workers": noisy(**script(batch_wait_s=0.006, loader={"num_workers": 0})),
    "accumulation": noisy(**ddp(), **sent(8, 4), **script(backwards_per_step=4.0)),
    "accumulation under no_sync": noisy(**ddp(), **sent(2), **script(backwards_per_step=4.0)),
    "a GAN": noisy(**ddp(), **sent(4, 2), **script(backwards_per_step=2.0, calls_per_step=2)),
    "a hook": noisy(**ddp(hook="fp16"), **sent(8, 4), **script(backwards_per_step=4.0)),
    "small buckets": noisy(**ddp(bucket_bytes=2**20), **sent(16)),
    "few buckets": noisy(**ddp(bucket_bytes=8 * 2**20), **sent(3)),
    "hidden buckets": noisy(**ddp(bucket_bytes=2**20), **sent(16, exposed_s=1e-6)),
    "unused search": noisy(
        **ddp(find_unused_parameters=True, unused_bytes=0), **script(unused_search_s=2e-3)
    ),
    "the search finds some": noisy(
        **ddp(find_unused_parameters=True, unused_bytes=400), **script(unused_search_s=2e-3)
    ),
    "host waits": noisy(device="cuda", **waits(0.004)),
    "host waits on CPU": noisy(**waits(2e-6)),
    "host waits of an older record": noisy(**waits(None)),
    "host waits of one rank": changed(make_row(world_size=1), **waits(0.004)),
    "good, and waits little": lossy({}, efficiency=0.99, spread=0.01, **waits(2e-6)),
    "good, and waits long": lossy({}, efficiency=0.99, spread=0.01, **waits(0.004)),
    # Suites of their own
    "frameworks": UNPAIRED,
    "frameworks in the same rounds": [
        FAST, NEAR, BEHIND, framework("slow", (20, 19, 21), (2.0, 1.9, 2.1))],
    "all frameworks slower": [FAST, BEHIND],
    "a framework of one launch": [FAST, framework("one", (20, 19, 21), (2.0, None, None))],
    "memory that is not all": [FAST, framework("horovod", (12, 11, 13), framework=HOROVOD,
                                               peak_memory_bytes=5_000_000)],
    "a framework that is wrong": [FAST, framework("wrong", (1, 0.9, 1.1), correctness=DEVIATES)],
    "versions not tested": [FAST, framework("new", (12, 11, 13), framework=NEWER),
                            framework("old", (14, 13, 15), framework=UNKNOWN)],
    "a race": make_summary(raced(large=figures(4.0, 2560), slow=figures(6.0, 2048))),
    "a race that is close": make_summary(
        raced(large=figures(4.0, 2048), close=figures(4.1, 2048))),
    "a race of one seed": make_summary(
        raced(large=figures(4.0, 2048, time_to_target_s=Estimate(value=4.0, n=1)))),
    "a race that one missed": make_summary(raced(late=MISSED)),
    "a race that most missed": make_summary(raced(a=MISSED, b=MISSED, c=MISSED)),
    "noise of steps": make_summary(noise_of_steps(6.0, 19.0)),
    "noise of steps is wide": make_summary(noise_of_steps(4.0, 19.0)),
    "noise of steps of one seed": make_summary(noise_of_steps(None, None)),
    "lockstep loses": make_summary(without_lockstep(4, 2458)),
    "staleness costs more": make_summary(without_lockstep(10, 4096)),
    "saved": make_summary(rows_with(
        [save("full", 0.040, slower_s=None), save("async", 0.020)],
        [restore(2, True), restore(1, None)])),
    "saved to memory": make_summary(rows_with([save("full", 0.0205), save("async", 0.020)], [],
                                              "tmpfs")),
    "restored with other bits": make_summary(rows_with([save("full", 0.02)], [restore(2, False)])),
    "experts": experts(),
    "busy expert": experts(times_mean=2.5),
    "slow expert": experts((1e-6, 4e-6), 2.5),
    "expert a little slower": experts((1e-6, 1.4e-6)),
    "expert not timed": experts((1e-6, None)),
    # Recorded on four virtual hosts in two racks, 400 Mbit/s inside and 10 Mbit/s between them.
    "slow link between racks": crossing(("shard", 1277184, 2.922, 2.922),
                                        ("tensor", 2665472, 1.907, 1.026)),
    "slow link the other way": crossing(("shard", 1277184, 0.287, 0.287),
                                        ("tensor", 2665472, 6.573, 2.469)),
    "axes as fast as each other": crossing(("tensor", 6e6, 0.05, 0.04), ("data", 9e6, 0.05, 0.04)),
    "imprecise": imprecise(("ddp", 0.042, 86.4)),
    "several imprecise": imprecise(("a", 0.04, 70.0), ("b", 0.09, 720.0), ("c", 0.06, 270.0)),
    "imprecise for hours": imprecise(("ddp", 0.71, 3600.0)),
    "imprecise for an hour": imprecise(("ddp", 0.0302, 3510.0)),
}  # fmt: skip
"""A row or a list of rows stands for a run with the plain row before them."""


def run_of(name: str) -> Summary:
    """Return the run of a state."""
    state = STATES[name]
    if isinstance(state, Summary):
        return state
    rows = [state] if isinstance(state, Row) else state
    return make_summary([make_plain(suite=rows[0].suite), *rows])
