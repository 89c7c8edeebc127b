"""Which launches of a run the page shows, the curves of races and the load of experts."""

import numpy as np
import pytest

from scalebench.analysis.page_data import gather
from scalebench.analysis.page_data.expert_load import expert_load_of
from scalebench.analysis.page_data.races import RaceCurve, race_curves
from scalebench.analysis.rows.launches import grouped
from scalebench.analysis.summarise import summarise
from scalebench.records.race import RacePoint
from scalebench.records.rank import Block
from scalebench.spec import Expert
from tests.builders.runs import make_cell, make_failed, make_record, make_result, make_run
from tests.builders.traced import (
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)


def traced(world_size, repeat=0, clean=100, **changes):
    """A traced launch whose ranks all-reduce once."""
    operations = [make_operation(40, 50, group_size=world_size)]
    records = [
        make_traced_record(rank, make_trace(operations, [(0, 30)]), clean)
        for rank in range(world_size)
    ]
    return make_traced_result(*records, repeat=repeat, rank_batch=1, **changes)


def gathered(*results):
    run = make_run(results)
    return gather(run, summarise(run))


def places(found):
    return [(one.case, one.world_size, one.repeat) for one in found]


def test_the_largest_size_of_every_case_is_shown():
    plain = [make_result(make_cell("plain", 1, repeat), 0.1) for repeat in (0, 1)]
    failed = make_failed(make_cell("ddp", 5))
    found = gathered(*plain, traced(3), traced(3, 1), traced(2), traced(1), failed)
    assert places(found.step_series) == [
        ("plain", 1, 0), ("plain", 1, 1), ("ddp", 3, 0), ("ddp", 3, 1)
    ]  # fmt: skip
    assert places(found.grids) == [("ddp", 3, 0)]
    assert places(found.timelines) == [("ddp", 3, 0)]
    assert found.link is None and found.link_unavailable == "no link was calibrated in this run"
    assert (found.devices, found.races, found.expert_loads) == ((), (), ())
    assert found.autocorrelations == ()  # too few steps


def test_a_case_on_one_rank_has_no_timeline_and_no_grid():
    found = gathered(traced(1))
    assert places(found.step_series) == [("ddp", 1, 0)]
    assert (found.timelines, found.grids) == ((), ())


def test_a_size_that_shares_cores_is_shown_where_there_is_no_other():
    found = gathered(traced(2, oversubscribed=True), traced(3, oversubscribed=True))
    assert places(found.grids) == [("ddp", 3, 0)]
    found = gathered(traced(2), traced(3, oversubscribed=True))
    assert places(found.grids) == [("ddp", 2, 0)]


def test_the_autocorrelation_is_of_all_launches_of_the_largest_size():
    steps = [0.1, 0.2, 0.4, 0.1] * 5
    launches = [
        make_result(make_cell("ddp", 2, repeat), ranks=[make_record(r, steps) for r in (0, 1)])
        for repeat in (0, 1)
    ]
    (one,) = gathered(*launches).autocorrelations
    assert (one.case, one.world_size, one.num_steps) == ("ddp", 2, 40)


def racing(*points, repeat=0, **changes):
    race = [RacePoint(samples=s, trained_s=t, elapsed_s=9.0, loss=x, **m) for s, t, x, m in points]
    ranks = [make_record(0, race=race), make_record(1)]
    return make_result(make_cell("ddp", 2, repeat, **changes), ranks=ranks)


def test_the_curve_of_every_launch_of_a_race():
    first = racing((0, 0.0, 5.5, {"sent_bytes": 0.0}), (64, 2.0, None, {"sent_bytes": 7.0}))
    second = racing((0, 0.0, 5.5, {"sent_bytes": 1.0}), (32, 1.5, 4.5, {}), repeat=1)
    none = racing(repeat=2)
    run = make_run([first, second, none, make_failed(make_cell("ddp", 2, 3))])
    place = {"suite": "ddp", "case": "ddp", "world_size": 2, "global_batch": 32}
    expected = [
        RaceCurve(
            **place,
            repeat=0,
            samples=(0, 64),
            trained_s=(0.0, 2.0),
            loss=(5.5, None),
            sent_bytes=(0.0, 7.0),
        ),
        RaceCurve(
            **place, repeat=1, samples=(0, 32), trained_s=(0.0, 1.5), loss=(5.5, 4.5)
        ),  # one point does not say what was sent
    ]
    assert list(race_curves(grouped(run))) == expected
    assert gather(run, summarise(run)).races == tuple(expected)


BLOCKS = [
    Block(phase="warmup", first=0, count=2),
    Block(phase="clean", first=4, count=3),
    Block(phase="clean", first=2, count=2),
    Block(phase="traced", first=7, count=2),
]


def load_launch(steps, kept, blocks=BLOCKS):
    """Two ranks that had a quarter and three quarters of the tokens; layers by experts."""
    ranks = []
    for rank, share in enumerate((1, 3)):
        own = [[[share * count for count in layer] for layer in step] for step in kept]
        load = {"steps": steps, "ranks": 2, "kept": own, "chosen": own, "here": own}
        ranks.append(make_record(rank, facts={"expert_load": load}, blocks=blocks))
    return make_result(make_cell("expert", 2, strategy=Expert()), ranks=ranks)


def test_the_load_of_two_layers_over_steps_up_to_the_last_clean_one():
    kept = [
        [[1, 2, 3], [0, 0, 0]],
        [[4, 0, 8], [1, 1, 4]],
        [[2, 2, 2], [5, 0, 1]],
        [[9, 9, 9], [9, 9, 9]],
    ]
    found = expert_load_of(load_launch([1, 3, 6, 7], kept))
    assert (found.suite, found.case, found.world_size) == ("ddp", "expert", 2)
    assert found.experts == ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2))
    assert (found.steps, found.steady_from) == ((1, 3, 6), 2)
    expected = [[0.5, 1, 1], [1, 0, 1], [1.5, 2, 1], [0, 0.5, 2.5], [0, 0.5, 0], [0, 2, 0.5]]
    assert found.times_even.dtype == np.float32
    assert found.times_even == pytest.approx(np.array(expected))


def test_a_few_tokens_are_divided_by_their_mean_too():
    """One token of both ranks together: the even share of three experts is a third."""
    found = expert_load_of(load_launch([4], [[[0.25, 0, 0]]]))
    assert found.times_even[:, 0] == pytest.approx([3, 0, 0])


def test_without_a_clean_step_among_them_all_steps_are_drawn():
    warm = [Block(phase="warmup", first=0, count=9)]
    found = expert_load_of(load_launch([1, 3], [[[1, 3]], [[2, 2]]], warm))
    assert (found.steps, found.steady_from) == ((1, 3), 0)
    assert found.times_even == pytest.approx(np.array([[0.5, 1], [1.5, 1]]))
