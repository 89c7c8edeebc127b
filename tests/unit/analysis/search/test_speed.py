"""What a rank computes in, from rows with round figures."""

from types import SimpleNamespace

import pytest

from scalebench.analysis.search.speed import (
    _contention,
    _device_name,
    _line,
    _machinery,
    _recomputing,
    _told,
    plain_rows,
)
from scalebench.records.rows.prediction import Prediction
from scalebench.stats import Estimate
from tests.builders.summaries import make_row
from tests.unit.costmodel.search.jobs import SMALL

MS = 1e-3
FLOP_S = {"float32": MS / SMALL.flops_per_sample}
"""A millisecond for each sample."""


def row_of(strategy, step_s, world_size=1, **changes):
    fields = {"workload": SMALL.name, "rank_batch": 8, "strategy_settings": {}}
    step = Estimate(value=step_s, n=1)
    return make_row(strategy, world_size, strategy=strategy, step_s=step, **{**fields, **changes})


def machinery(*rows):
    return _machinery(rows, SMALL, FLOP_S, pass_s=2 * MS, update_s=3 * MS, contention=1.5)


def test_one_batch_gives_what_a_sample_costs_and_the_update_at_most_half():
    assert _line({16: 1.0}, 0.2) == (0.2, pytest.approx(0.05))
    assert _line({16: 1.0}, 0.9) == (0.5, pytest.approx(0.03125))


def test_two_batches_give_the_line_and_neither_part_is_negative():
    assert _line({8: 0.5, 16: 0.9}, 0.0) == (pytest.approx(0.1), pytest.approx(0.05))
    fixed, each = _line({8: 0.4, 16: 0.9}, 0.0)
    assert fixed == 0 and 0.05 < each < 0.9 / 16


def test_what_an_axis_costs_beside_the_work():
    """20 ms of 8 samples: with contention 30, less 8 of work, 2 of a pass and 4.5 of updating."""
    assert machinery(row_of("fsdp", 20 * MS)) == {"shard": pytest.approx(15.5 * MS)}
    middle = [row_of("fsdp", step * MS) for step in (20, 40, 22)]
    assert machinery(*middle) == {"shard": pytest.approx(18.5 * MS)}
    assert machinery(row_of("tensor", 1 * MS)) == {"tensor": 0.0}


@pytest.mark.parametrize(
    ("settings", "expected_ms"),
    [
        ({"microbatches": 4, "chunks": 2}, (45 - 8 - 4 * 2 - 4.5) / 8),
        ({"microbatches": 4}, (45 - 8 - 4 * 2 - 4.5) / 4),
        ({}, 45 - 8 - 2 - 4.5),
    ],
)
def test_a_pipeline_pays_for_each_microbatch_and_chunk(settings, expected_ms):
    found = machinery(row_of("pipeline", 30 * MS, strategy_settings=settings))
    assert found == {"pipeline": pytest.approx(expected_ms * MS)}
    other = machinery(row_of("context", 30 * MS, strategy_settings=settings))
    assert other == {"context": pytest.approx(30.5 * MS)}


@pytest.mark.parametrize(
    "changes",
    [
        {"world_size": 2},
        {"workload": "another"},
        {"status": "failed"},
        {"strategy_settings": {"checkpointing": "all"}},
        {"strategy_settings": {"autocast": True}},
        {"strategy": "ddp"},
    ],
)
def test_rows_that_do_not_tell_what_an_axis_costs(changes):
    row = row_of("fsdp", 20 * MS)
    assert machinery(row.model_copy(update=changes)) == {}
    assert machinery(row.model_copy(update={"step_s": None})) == {}


def replace_batch(row, batch):
    return row.model_copy(update={"rank_batch": batch})


def checkpointed(how, step_ms, batch=8):
    settings = {"checkpointing": how}
    return row_of("plain", step_ms * MS, rank_batch=batch, strategy_settings=settings)


def recomputing(*rows):
    return _recomputing(rows, SMALL, FLOP_S, contention=1.5)


PLAINS = (replace_batch(row_of("plain", 2 * MS), 1), row_of("plain", 16 * MS))


def test_recomputation_is_a_part_of_forward_and_what_every_microbatch_pays():
    """2 ms more on one sample, 3.75 on 8: 0.25 for each, 1.75 apart; forward takes 1/3 ms."""
    rows = (checkpointed("selective", 4, 1), checkpointed("selective", 19.75))
    found = recomputing(*PLAINS, *rows, checkpointed(True, 12))
    assert found["selective"].forwards == pytest.approx(1.5 * 0.75)
    assert found["selective"].pass_s == pytest.approx(1.5 * 1.75 * MS)
    assert (found["full"].forwards, found["full"].pass_s) == (0.0, 0.0)  # faster: it is noise
    alone = recomputing(*PLAINS, checkpointed(True, 20))["full"]
    assert (alone.forwards, alone.pass_s) == (pytest.approx(1.5 * 1.5), 0.0)


@pytest.mark.parametrize(
    "row",
    [
        checkpointed("selective", 20, batch=4),
        checkpointed("selective", 20).model_copy(update={"world_size": 2}),
        checkpointed("selective", 20).model_copy(update={"step_s": None}),
        checkpointed("selective", 20).model_copy(update={"strategy": "ddp"}),
        row_of("plain", MS, strategy_settings={"checkpointing": True, "autocast": True}),
    ],
)
def test_recomputation_needs_the_same_batch_and_precision_without_it(row):
    assert recomputing(*PLAINS, row) == {}


def predicted(contention):
    figures = dict.fromkeys(
        ("computing_s", "bubble_s", "exposed_comm_s", "link_low_s", "link_high_s"), 1.0
    )
    return Prediction(**figures, link_world_sizes=[2], launch_spread=0.0, contention=contention)


def test_contention_is_that_of_most_ranks_that_know_it():
    rows = [
        row_of("ddp", MS, world_size=n, prediction=predicted(value))
        for n, value in ((2, 1.4), (4, 1.2), (8, None))
    ]
    assert _contention(rows, SMALL.name) == 1.2
    assert _contention(rows, "another") == 1.0
    assert _contention([row_of("ddp", MS)], SMALL.name) == 1.0


@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "ddp"},
        {"world_size": 2},
        {"workload": "another"},
        {"status": "oom"},
        {"step_s": None},
        {"strategy_settings": {"checkpointing": "all"}},
        {"strategy_settings": {"compile": True}},
    ],
)
def test_plain_rows_are_those_of_one_rank_that_compute_as_they_are(changes):
    row = row_of("plain", MS, strategy_settings={"autocast": True})
    assert plain_rows([row], SMALL.name) == [row]
    assert plain_rows([row.model_copy(update=changes)], SMALL.name) == []


def run_on(device, names):
    environment = {"devices": [{"name": name} for name in names]}
    info = SimpleNamespace(environment=environment, spec=SimpleNamespace(device=device), run_id="r")
    return SimpleNamespace(info=info)


def test_the_peak_is_that_of_the_device_that_trained():
    assert _device_name(run_on("cuda", ["A", "B"])) == "A"
    assert _device_name(run_on("cpu", ["A"])) == _device_name(run_on("cuda", [])) == "cpu"


def test_where_a_speed_comes_from_is_said():
    rows = [row_of("plain", MS), replace_batch(row_of("plain", MS), 16)]
    assert _told(run_on("cpu", []), rows, 1.0004) == (
        "one rank, measured in run r on 8 and 16 samples a step"
    )
    assert _told(run_on("cpu", []), rows[:1], 1.25).endswith(
        "8 samples a step; ranks that compute at once take 1.25 times as long"
    )
