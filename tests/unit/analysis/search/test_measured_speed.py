"""How fast a rank computes, figure by figure, from rows and launches whose numbers are round."""

import pytest

from scalebench.analysis.search.speed import (
    NoPlainRow,
    _line,
    _machinery,
    _recomputing,
    _told,
    measured_speed,
    plain_rows,
    whole_model,
)
from scalebench.costmodel.search.job import Recomputing
from scalebench.costmodel.search.model import SearchModel
from scalebench.costmodel.search.whole_model import WholeModel
from scalebench.spec import Ddp, Fsdp
from scalebench.spec.presets import PRESETS
from scalebench.stats import Estimate
from tests.builders.runs import make_cell, make_failed, make_record, make_result, make_run
from tests.builders.summaries import make_prediction, make_row, make_summary
from tests.unit.analysis.rows.test_prediction import BUCKETS, ask, at_one

NAME = "gpt-tiny"
MODEL = SearchModel.of_preset(PRESETS[NAME])
FLOPS = MODEL.flops_per_sample


def row_of(strategy, step_s, batch=8, world_size=1, settings=None, **changes):
    fields = {"workload": NAME, "rank_batch": batch, "strategy_settings": settings or {}}
    step = None if step_s is None else Estimate(value=step_s, n=1)
    return make_row(strategy, world_size, strategy=strategy, step_s=step, **fields | changes)


def contended(factor, world_size=2, **changes):
    prediction = make_prediction(0.1, contention=factor)
    return row_of("ddp", 0.1, world_size=world_size, prediction=prediction, **changes)


def ddp_run(*results):
    """DDP on one rank whose optimizer takes 10 of 100 ms, unless other launches are given."""
    return make_run(results or [at_one(*BUCKETS)])


def speed(rows, run=None, model=MODEL):
    return measured_speed(run or ddp_run(), make_summary(rows), model)


FLOAT32 = [row_of("plain", 0.06, 8), row_of("plain", 0.10, 16)]
"""20 ms, and 5 for each sample."""
MIXED = [
    row_of("plain", 0.05, 8, settings={"autocast": True}),
    row_of("plain", 0.074, 16, settings={"autocast": True}),
]
"""26 ms, and 3 for each sample."""


def test_every_figure_of_a_speed():
    rows = [*FLOAT32, *MIXED, contended(1.25), row_of("fsdp", 0.2, 8)]
    found = speed(rows)
    assert found.flop_s == pytest.approx(
        {"float32": 1.25 * 0.005 / FLOPS, "bfloat16": 1.25 * 0.003 / FLOPS}
    )
    # The optimizer's 10 ms are no part of what a microbatch costs: 16 ms of the slower one.
    assert found.update_s == pytest.approx(0.0125)
    assert found.pass_s == pytest.approx(1.25 * 0.016)
    shard_s = 1.25 * 0.2 - 1.25 * 8 * 0.005 - 1.25 * 0.016 - 1.25 * 0.010
    assert found.axis_s == {"shard": pytest.approx(shard_s)}
    assert (found.recomputing, found.peak_flops, found.split_s) == ({}, {}, 0.0)
    assert found.told == (
        "one rank, measured in run 20240501T120000Z_ddp_cpu_abcdefg on 8 and 16 samples a step; "
        "ranks that compute at once take 1.25 times as long"
    )


def test_what_a_microbatch_costs_is_the_larger_of_both_precisions():
    """In float32 30 ms and 5 for each sample; the mixed ones are the smaller now."""
    slow = [row_of("plain", 0.07, 8), row_of("plain", 0.11, 16)]
    assert speed([*slow, *MIXED]).pass_s == pytest.approx(0.020)
    # Less than the optimizer takes is no time at all.
    assert speed([row_of("plain", 0.045, 8), row_of("plain", 0.085, 16)]).pass_s == 0.0


def test_one_precision_alone():
    found = speed(MIXED)
    assert found.precisions == ("bfloat16",)
    assert found.flop_s["bfloat16"] == pytest.approx(0.003 / FLOPS)
    assert found.told.endswith("on 8 and 16 samples a step")


def test_recomputation_is_found_with_the_rest():
    again = row_of("plain", 0.08, 8, settings={"checkpointing": True})
    found = speed([*FLOAT32, again, contended(1.25)]).recomputing
    # 20 ms more, where a forward pass of 8 samples takes a third of 40.
    assert found == {"full": Recomputing(pytest.approx(1.5), 0.0)}


def test_a_run_without_the_plain_model_is_refused():
    with pytest.raises(NoPlainRow, match="did not measure gpt-tiny plainly"):
        speed([row_of("ddp", 0.1)])


def ddp_of(bucket_ms, repeat=0, **changes):
    """DDP on one rank whose optimizer begins with its last bucket; of 100 ms."""
    result = at_one(ask(bucket_ms))
    return result.model_copy(
        update={"cell": result.cell.model_copy(update={"repeat": repeat, **changes})}
    )


def test_the_optimizers_part_is_of_ddp_on_one_rank_that_was_traced():
    untraced = make_result(make_cell("bare", 1, strategy=Ddp(), global_batch=32, rank_batch=32))
    others = [
        ddp_of(50, case="fsdp", strategy=Fsdp()),
        ddp_of(60, case="other", workload=PRESETS["gpt-mini"]),
        untraced,
        make_failed(make_cell("failed", 1, strategy=Ddp())),
    ]
    run = ddp_run(*others, ddp_of(70, case="good"), ddp_of(80, case="later"))
    assert speed(FLOAT32, run).update_s == pytest.approx(0.030)
    assert speed(FLOAT32, ddp_run(*others)).update_s == 0.0
    # One batch gives what a sample costs, behind the update.
    one = speed(FLOAT32[:1], run)
    assert one.flop_s["float32"] == pytest.approx((0.06 - 0.03) / 8 / FLOPS)
    assert one.pass_s == 0.0


def on_a100(run):
    devices = {"devices": [{"name": "NVIDIA A100-SXM4-80GB"}, {"name": "Tesla T4"}]}
    spec = run.info.spec.model_copy(update={"device": "cuda"})
    run.info = run.info.model_copy(update={"environment": devices, "spec": spec})
    return run


def test_peaks_are_those_of_the_precisions_that_were_measured():
    found = speed([*FLOAT32, *MIXED], on_a100(ddp_run())).peak_flops
    assert found == {"float32": 19.5e12, "bfloat16": 312e12}
    whole = [WholeModel.of(NAME, 100, 2, flops) for flops in (5e6, None)]
    counted, uncounted = (speed(FLOAT32, on_a100(ddp_run()), one).peak_flops for one in whole)
    assert (counted, uncounted) == ({"float32": 19.5e12}, {})


def test_any_workload_has_the_groups_of_the_launch_that_has_most():
    """Of the four groups of the largest list the last is the root."""

    def launch(case, sizes, ok=True, **changes):
        cell = make_cell(case, 2, **changes)
        ranks = [
            make_record(0, facts={"group_elements": sizes[0]} if sizes[0] else {}),
            make_record(1, facts={"group_elements": sizes[1]} if sizes[1] else {}),
        ]
        return make_result(cell, ranks=ranks) if ok else make_failed(cell)

    row = row_of("plain", 0.1, num_parameters=777, flops_per_sample=5e6)
    run = make_run(
        [
            launch("ddp", (None, None)),
            launch("fsdp", ([1, 2, 3], [1, 2, 3, 4])),
            launch("other", ([1] * 9, [1] * 9), workload=PRESETS["gpt-mini"]),
        ]
    )
    assert whole_model(run, make_summary([row]), NAME) == WholeModel.of(NAME, 777, 3, 5e6)
    for sizes, inner in (
        ((None, None), 1),
        (([5], None), 1),
        (([5, 6], None), 1),
        (([5] * 3, None), 2),
    ):
        few = make_run([launch("ddp", sizes)])
        assert whole_model(few, make_summary([row]), NAME).layers == inner
    assert whole_model(make_run([]), make_summary([row]), NAME).layers == 1
    for rows in ([], [row_of("ddp", 0.1)], [row.model_copy(update={"num_parameters": None})]):
        with pytest.raises(NoPlainRow, match="did not measure gpt-tiny plainly"):
            whole_model(make_run([]), make_summary(rows), NAME)


def test_plain_rows_without_a_word_on_checkpointing_have_none():
    rows = [
        row_of("plain", 0.1, settings=settings)
        for settings in ({}, {"checkpointing": False}, {"checkpointing": None}, {"compile": False})
    ]
    assert plain_rows(rows, NAME) == rows


def test_a_sample_costs_what_the_line_says_weighted_by_the_steps():
    """Three batches of which none is on the line: least squares of the relative errors."""
    steps = {4: 0.5, 8: 0.7, 16: 1.3}
    fixed, each = _line(steps, 9.0)
    # Of r = (a + k·x)/t − 1 the sum of squares has no slope in a or k.
    left = {x: (fixed + each * x) / t - 1 for x, t in steps.items()}
    assert sum(left[x] / t for x, t in steps.items()) == pytest.approx(0, abs=1e-9)
    assert sum(left[x] * x / t for x, t in steps.items()) == pytest.approx(0, abs=1e-9)
    assert fixed > 0 and each > 0


def test_how_contention_is_told():
    run = ddp_run()
    told = {factor: _told(run, FLOAT32[:1], factor) for factor in (1.0, 1.0004, 1.0007, 0.9992)}
    start = "one rank, measured in run 20240501T120000Z_ddp_cpu_abcdefg on 8 samples a step"
    assert told[1.0] == told[1.0004] == start
    more = f"{start}; ranks that compute at once take 1.00 times as long"
    assert told[1.0007] == told[0.9992] == more


def test_machinery_takes_the_precision_of_its_row_and_at_least_nothing():
    flop_s = {"float32": 0.004 / FLOPS, "bfloat16": 0.001 / FLOPS}

    def machinery(*rows):
        return _machinery(rows, MODEL, flop_s, pass_s=0.002, update_s=0.003, contention=1.5)

    mixed = {"autocast": True}
    assert machinery(row_of("tensor", 0.1, settings=mixed)) == {
        "tensor": pytest.approx(0.15 - 0.008 - 0.002 - 0.0045)
    }
    found = machinery(row_of("mesh", 0.1), row_of("expert", 0.2), row_of("context", 1e-9))
    rest = 0.032 + 0.002 + 0.0045
    assert found == {
        "tensor": pytest.approx(0.15 - rest),
        "expert": pytest.approx(0.3 - rest),
        "context": 0.0,
    }
    # Two rows of an axis: what lies between; zero rows: no axis.
    found = machinery(row_of("tensor", 0.1), row_of("mesh", 0.2))
    assert found == {"tensor": pytest.approx(0.225 - rest)}
    assert machinery() == {}


def test_recomputation_in_each_precision_is_held_against_its_own():
    """Mixed: 24 ms more where a forward pass of 8 samples takes 8; in float32 5 more of 40/3."""
    flop_s = {"float32": 0.005 / FLOPS, "bfloat16": 0.003 / FLOPS}
    plains = [row_of("plain", 0.06, 8), row_of("plain", 0.05, 8, settings={"autocast": True})]
    whole = {"checkpointing": True}
    again = row_of("plain", 0.074, 8, settings=whole | {"autocast": True})
    found = _recomputing([*plains, again], MODEL, flop_s, 1.0)
    assert found == {"full": Recomputing(pytest.approx(3.0), 0.0)}
    slow = row_of("plain", 0.065, 8, settings={"checkpointing": "selective"})
    found = _recomputing([*plains, slow, again], MODEL, flop_s, 2.0)
    assert found["selective"] == Recomputing(pytest.approx(2 * 0.005 * 3 / 0.04), 0.0)
    assert list(found) == ["selective", "full"]
    only = _recomputing([*plains, slow, again], MODEL, {"float32": flop_s["float32"]}, 1.0)
    assert list(only) == ["selective"]


def test_recomputation_weighs_each_row_by_its_plain_step():
    """Three batches off any line: the errors that count are relative to the plain step."""
    flop_s = {"float32": 0.003 / FLOPS}  # a forward pass of a sample takes 1 ms
    steps = {4: (0.02, 0.009), 8: (0.03, 0.013), 16: (0.08, 0.030)}
    rows = []
    for batch, (plain_s, more_s) in steps.items():
        rows += [row_of("plain", plain_s, batch)]
        rows += [row_of("plain", plain_s + more_s, batch, settings={"checkpointing": True})]
    found = _recomputing(rows, MODEL, flop_s, 1.0)["full"]
    left = {
        x: (found.forwards * x * 0.001 + found.pass_s - more_s) / t
        for x, (t, more_s) in steps.items()
    }
    assert sum(left[x] / t for x, (t, _) in steps.items()) == pytest.approx(0, abs=1e-9)
    assert sum(left[x] * x / t for x, (t, _) in steps.items()) == pytest.approx(0, abs=1e-9)
    assert found.forwards > 0 and found.pass_s > 0
