"""Ratios between rows, exactly: which steps, which factor, which baseline."""

import math

import pytest

from scalebench.analysis.interim import CONFIDENCE_OF_LOOKS
from scalebench.analysis.rows.efficiency import Ratios, plain_baseline
from scalebench.analysis.rows.inflation import IN_STAGES, inflation_of
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rank import Block
from scalebench.spec import Ddp, Pipeline, Plain, Script
from scalebench.spec.presets import PRESETS
from scalebench.spec.script import ScriptTarget
from scalebench.spec.suites import Loader
from scalebench.stats import CONFIDENCE, Estimate
from tests.builders.runs import make_cell, make_failed, make_record, make_result, make_run
from tests.builders.summaries import make_budget


def alone(num_ranks, repeat, batch=5):
    return make_cell(
        "plain", num_ranks, repeat, purpose="independent", rank_batch=batch,
        global_batch=batch * num_ranks,
    )  # fmt: skip


def results(rounds=(0, 1), **changes):
    """Plain on 30 samples takes 6 s, DDP on three ranks and 15 samples 1.5 s, by rounds slower."""
    batch = {"global_batch": 15, "rank_batch": 5}
    return [
        make_result(cell, step_s * (1 + 0.1 * repeat))
        for repeat in rounds
        for cell, step_s in (
            (make_cell("plain", 1, repeat, global_batch=30, rank_batch=30), 6.0),
            (make_cell("ddp", 3, repeat, **batch | changes), 1.5),
            (make_cell("ddp", 1, repeat, global_batch=30, rank_batch=30), 8.0),
            (alone(1, repeat), 1.25),
            (alone(3, repeat), 2.0),
        )
    ]


def rows(found):
    table = found.table
    return table["ddp", "ddp", 3], table["ddp", "plain", 1], table["ddp", "ddp", 1]


def test_speedup_and_efficiency_are_ratios_of_samples_per_second():
    """15 samples in 1.5 s against 30 in 6 s: twice as many."""
    ratios = Ratios.of(make_run(results()))
    row, base, one = rows(ratios)
    assert ratios.speedup(row, base).value == pytest.approx(2.0)
    assert ratios.efficiency(row, base).value == pytest.approx(2 / 3)
    assert ratios.efficiency(one, base).value == pytest.approx(0.75)
    assert ratios.speedup(row, base).n == 2
    assert ratios.speedup(row, None) is None and ratios.efficiency(row, None) is None
    assert ratios.confidence == CONFIDENCE


def test_every_row_but_the_baseline_itself_has_an_efficiency():
    """With 30 samples in 1.5 s three ranks train four times as many as one."""
    ratios = Ratios.of(make_run(results(global_batch=30, rank_batch=10)))
    base = ratios.table["ddp", "plain", 1]
    found = {(a.cell.case, a.cell.world_size): (b, e.value) for a, b, e in ratios.efficiencies()}
    assert found == {
        ("ddp", 3): (base, pytest.approx(4 / 3)),
        ("ddp", 1): (base, pytest.approx(0.75)),
    }
    broken = [r for r in results() if r.cell.case != "plain"]
    assert list(Ratios.of(make_run(broken)).efficiencies()) == []
    failed = [make_failed(r.cell) if r.cell.world_size == 3 else r for r in results()]
    assert [a.cell.world_size for a, _, _ in Ratios.of(make_run(failed)).efficiencies()] == [1]


def test_a_step_over_another_is_as_sure_as_so_many_comparisons_ask():
    ratios = Ratios.of(make_run(results((0, 1, 2))))
    row, base, one = rows(ratios)
    found = ratios.step_ratio(one, base, 1)
    assert found.value == pytest.approx(8 / 6)
    noise = ratios.noise["ddp"]
    keys = (("ddp", "plain", 1), ("ddp", "ddp", 1))
    for comparisons, confidence in ((1, 0.95), (2, 0.975), (5, 0.99)):
        found = ratios.step_ratio(one, base, comparisons).model_dump()
        expected = noise.ratio(*keys, 1, confidence)
        assert found == pytest.approx(expected.model_dump())
    widths = [ratios.step_ratio(row, base, n).half_width for n in (1, 2, 5)]
    assert widths == sorted(widths)


def test_what_a_smaller_batch_and_sharing_a_machine_cost():
    """1.25 s for 5 samples where 30 take 6: 1.25 times as long for each; at once 1.6 times."""
    ratios = Ratios.of(make_run(results()))
    row, base, one = rows(ratios)
    assert ratios.smaller_batch(row, base).value == pytest.approx(1.25)
    assert ratios.contention(row, base).value == pytest.approx(2.0 / 1.25)
    assert ratios.has_independent(row, base) is True
    same = ratios.smaller_batch(one, base)
    assert same == Estimate(value=1.0, low=1.0, high=1.0, n=2)
    assert ratios.contention(one, base) is None and ratios.has_independent(one, base) is False
    never = Launches(base.cell)
    assert ratios.smaller_batch(one, never).n == 1


@pytest.mark.parametrize("left_out", [1, 3])
def test_without_plain_ranks_alone_or_at_once_there_is_no_contention(left_out):
    kept = [
        r for r in results() if (r.cell.purpose, r.cell.world_size) != ("independent", left_out)
    ]
    ratios = Ratios.of(make_run(kept))
    row, base, _ = rows(ratios)
    assert ratios.contention(row, base) is None
    assert (ratios.smaller_batch(row, base) is None) == (left_out == 1)
    assert ratios.has_independent(row, base) == (left_out == 1)


def test_with_the_baselines_batch_contention_is_over_the_baseline():
    """Weak scaling: 30 samples on each of three ranks, which take 9 s beside one another."""
    batch = {"global_batch": 90, "rank_batch": 30}
    crowd = [make_result(alone(3, n, 30), 9.0 * (1 + 0.1 * n)) for n in (0, 1)]
    ratios = Ratios.of(make_run([*results(**batch), *crowd]))
    row, base, _ = rows(ratios)
    assert ratios.contention(row, base).value == pytest.approx(1.5)


def test_the_noise_is_that_of_each_suite():
    others = [
        make_result(cell.model_copy(update={"suite": "z"}), 1.0)
        for cell in (make_cell("plain", 1), make_cell("ddp", 2))
    ]
    ratios = Ratios.of(make_run([*results(), *others]))
    assert set(ratios.noise) == {"ddp", "z"}
    row, base = ratios.table["z", "ddp", 2], ratios.table["z", "plain", 1]
    assert ratios.speedup(row, base).value == pytest.approx(1.0)


def test_a_run_that_looked_between_rounds_is_taken_more_surely():
    run = make_run(results())
    spec = run.info.spec.model_copy(update={"precision": 0.02})
    run.info = run.info.model_copy(update={"spec": spec})
    assert Ratios.of(run).confidence == CONFIDENCE_OF_LOOKS > CONFIDENCE


def row_of(case, n=1, **changes):
    cell = make_cell(case, n, rank_batch=8, **changes)
    return Launches(cell)


def test_the_baseline_has_the_same_loader_if_there_is_one():
    loader, other = Loader(num_workers=2), Loader(num_workers=3)
    row = row_of("ddp", 4, loader=loader)
    bare, loaded, others = (row_of("plain", loader=one) for one in (None, loader, other))
    without = {("ddp", "other", 1): others, ("ddp", "bare", 1): bare}
    assert plain_baseline(row, without) is bare
    assert plain_baseline(row, {**without, ("ddp", "loaded", 1): loaded}) is loaded
    assert plain_baseline(row, {("ddp", "other", 1): others}) is None
    assert plain_baseline(row_of("ddp", 4), {("ddp", "loaded", 1): loaded}) is None


def test_the_baseline_agrees_with_the_row_in_everything():
    """Of the plain rows only one at a time does not."""
    row = row_of("ddp", 4, global_batch=32)
    fitting = row_of("plain")
    others = {
        "batch": row_of("plain", global_batch=16),
        "suite": row_of("plain", suite="z"),
        "workload": row_of("plain", workload=PRESETS["cnn-8"]),
        "strategy": row_of("plain", strategy=Plain(autocast=True)),
        "itself": row,
    }
    table = {("ddp", name, 1): one for name, one in others.items()}
    assert plain_baseline(row, table) is None
    table = {**table, ("ddp", "plain", 1): fitting, ("ddp", "plain again", 1): row_of("plain")}
    assert plain_baseline(row, table) is fitting
    mixed = row_of("ddp", 4, global_batch=32, strategy=Ddp(autocast=True))
    assert plain_baseline(mixed, table) is others["strategy"]


def test_a_script_is_its_own_baseline_on_one_rank():
    target = ScriptTarget(name="train", program="train.py")
    one, four, other = (
        row_of(case, n, strategy=Script(), workload=target, global_batch=8 * n)
        for case, n in (("s", 1), ("s", 4), ("t", 1))
    )
    table = {("ddp", "t", 1): other, ("ddp", "s", 4): four, ("ddp", "s", 1): one}
    assert plain_baseline(four, table) is one and plain_baseline(one, table) is one
    assert plain_baseline(four, {("ddp", "s", 4): four}) is None


def test_inflation_is_shared_out_exactly():
    """Of an ideal step of 0.8 s a smaller batch takes 0.2 s more, and 1 s at once 0.6 more."""
    ratios = Ratios.of(make_run(results((0, 1, 2))))
    row, base, _ = rows(ratios)
    whole = Estimate(value=0.9, low=0.8, high=1.0, n=3)
    budget = make_budget(0.8, 1.0).model_copy(update={"estimates": {"compute_inflation_s": whole}})
    found = inflation_of(row, base, ratios, budget)
    assert found.smaller_batch_s.value == pytest.approx(0.2)
    assert found.contention_s.value == pytest.approx(0.6)
    assert found.own_operators_s.value == pytest.approx(0.1)
    crowded, smaller = ratios.contention(row, base), ratios.smaller_batch(row, base)
    assert found.contention == crowded
    assert (found.contention_s.low, found.contention_s.high) == pytest.approx(
        (crowded.low - 1, crowded.high - 1)
    )
    assert found.smaller_batch_s.low == pytest.approx(0.8 * (smaller.low - 1))
    assert found.smaller_batch_s.high == pytest.approx(0.8 * (smaller.high - 1))
    widths = (0.1, found.smaller_batch_s.half_width, found.contention_s.half_width)
    own = found.own_operators_s
    assert own.half_width == pytest.approx(math.hypot(*widths))
    assert (own.low + own.high) / 2 == pytest.approx(own.value)
    unknown = budget.model_copy(update={"estimates": {}})
    assert inflation_of(row, base, ratios, unknown).own_operators_s is None
    once = budget.model_copy(
        update={"estimates": {"compute_inflation_s": Estimate(value=0.9, n=1)}}
    )
    found = inflation_of(row, base, ratios, once).own_operators_s
    assert (found.value, found.low, found.high, found.n) == (pytest.approx(0.1), None, None, 1)
    assert inflation_of(row, None, ratios, budget) is None


def test_a_pipelines_contention_is_over_the_ideal_step():
    strategy = Pipeline(schedule="gpipe", microbatches=5)
    ratios = Ratios.of(make_run(results(strategy=strategy)))
    row, base, _ = rows(ratios)
    found = inflation_of(row, base, ratios, make_budget(0.8, 1.0))
    assert found.contention_s.value == pytest.approx(0.8 * 0.6)
    assert (found.smaller_batch_s, found.unavailable) == (None, {"smaller_batch_s": IN_STAGES})


def test_blocks_in_turns_tell_what_a_launch_does_not_know():
    """Rows that took turns: their blocks stand for what their own steps vary by."""

    def turning(case, n, shared):
        steps = [0.1 + 0.01 * (i**3 % 37) for i in range(52)]
        blocks = [
            Block(phase="clean", first=13 * i, count=13, start_ns=100 * i + n, end_ns=100 * i + 50)
            for i in range(4)
        ]
        ranks = [
            make_record(r, step_s=steps, loss=[1.0] * len(steps), blocks=blocks) for r in range(n)
        ]
        return make_result(make_cell(case, n), ranks=ranks, shared_with=["b"] if shared else [])

    cells = (("plain", 1), ("ddp", 1), ("ddp", 2))
    apart, together = (
        Ratios.of(make_run([turning(case, n, shared) for case, n in cells]))
        for shared in (False, True)
    )
    assert all(row.within > 0 for row in apart.table.values())
    assert apart.table["ddp", "ddp", 2].blocks == {}
    assert len(together.table["ddp", "ddp", 2].blocks[0]) == 4
