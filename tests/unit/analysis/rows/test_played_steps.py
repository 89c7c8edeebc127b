"""Steps that ranks played without their models: which rows use them, and how."""

import pytest

from scalebench.analysis.rows.at_one_rank import StepAtOneRank
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.records.probes import RehearsedStep
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.runs import make_cell

AT_ONE = StepAtOneRank(
    shape=StepShape(
        (CommRequest("all_reduce", 4096, 0.1, 0.1),), 0.1, 0.02, 32, {16: 0.06, 8: 0.03}
    )
)


def played(world_size: int, longer_s: float, case: str = "ddp") -> RehearsedStep:
    """All-reduces that take no time by themselves."""
    message = {"op": "all_reduce", "size_bytes": 4096, "ready_s": 0.05, "needed_s": 0.05}
    return RehearsedStep.model_validate(
        {
            "suite": "ddp",
            "case": case,
            "world_size": world_size,
            "plan": {"computing_s": 0.06, "operations": [message]},
            "exposed_s": [longer_s],
        }
    )


def links(*rehearsals: RehearsedStep) -> LinkModel:
    size = sizes(12, 1 << 8, 1 << 20)
    points = [p for n in (2, 4) for p in sweep(size, size * 1e-15, op="all_reduce", world_size=n)]
    return LinkModel(fit_links(points).fits, rehearsals=rehearsals)


def test_a_row_is_as_much_longer_as_it_was_played_at_the_nearest_number_of_ranks() -> None:
    link = links(played(2, 0.003), played(4, 0.005), played(4, 9.0, case="other"))
    for world_size, computing_s, longer_s in ((2, 0.06, 0.003), (4, 0.03, 0.005)):
        cell = make_cell("ddp", world_size)
        predicted = AT_ONE.played_over(link, cell).predict(cell, link.time)
        assert predicted.step_s == pytest.approx(computing_s + longer_s, abs=1e-5)
        assert predicted.high_s >= predicted.step_s
    at_three = make_cell("ddp", 3, global_batch=48, rank_batch=16)
    found = AT_ONE.played_over(link, at_three).predict(at_three, link.time)
    assert found.step_s == pytest.approx(0.065, abs=1e-5), "3 is nearer to 4, by its logarithm"


def test_contention_lengthens_the_work_and_not_what_was_played() -> None:
    cell, link = make_cell("ddp", 2), links(played(2, 0.003))
    crowded = StepAtOneRank(shape=AT_ONE.shape, contention=1.5).played_over(link, cell)
    assert crowded.predict(cell, link.time).step_s == pytest.approx(0.093, abs=1e-5)


def test_without_a_rehearsal_nothing_is_added() -> None:
    cell, link = make_cell("ddp", 2), links(played(2, 0.003, case="other"))
    bare = AT_ONE.played_over(link, cell)
    assert bare.longer_s is None
    assert bare.predict(cell, link.time).step_s == pytest.approx(0.06, abs=1e-5)
