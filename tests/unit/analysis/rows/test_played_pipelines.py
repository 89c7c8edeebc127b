"""Pipelines that ranks played without their models: which rows use them, and with what."""

import pytest

from scalebench.analysis.rows.at_one_rank import PipelineAtOneRank
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.pipelines.stage_split import Layers
from scalebench.costmodel.pipelines.step import PipelineShape
from scalebench.records.probes import RehearsedPipeline
from scalebench.spec import Pipeline
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.runs import make_cell

STRATEGY = Pipeline(schedule="gpipe", microbatches=4)
SHAPE = PipelineShape(
    STRATEGY, Layers((1.0,) * 4, (1024,) * 4), {"F": 0.01, "B": 0.02}, 0.0, 0.0, num_samples=32
)
AT_ONE = PipelineAtOneRank(pipeline=SHAPE, contention=1.5)


def played(world_size: int, step_s: float, case: str = "gpipe") -> RehearsedPipeline:
    """Passes of 10 ms on every rank: without messages m + p - 1 times 20 ms."""
    stage = {"forward_s": 0.01, "backward_s": 0.01, "output_bytes": 1024}
    plan = {"schedule": "gpipe", "microbatches": 4, "stages": [stage] * world_size}
    return RehearsedPipeline.model_validate(
        {
            "suite": "ddp",
            "case": case,
            "world_size": world_size,
            "plan": plan,
            "step_s": [step_s],
            "action_s": 0.0,
        }
    )


def links(*rehearsals: RehearsedPipeline) -> LinkModel:
    """Links that take no time to speak of."""
    size = sizes(12, 1 << 8, 1 << 20)
    points = [
        p
        for n in (2, 4)
        for op in ("send_recv",)
        for p in sweep(size, size * 1e-15, op=op, world_size=n)
    ]
    return LinkModel(fit_links(points).fits, rehearsals=rehearsals)


def cell(world_size: int, case: str = "gpipe"):
    return make_cell(case, world_size, strategy=STRATEGY, global_batch=32, rank_batch=32)


def test_a_row_takes_what_was_played_at_the_nearest_number_of_ranks() -> None:
    link = links(played(2, 0.101), played(4, 0.142), played(4, 9.0, case="1f1b"))
    assert AT_ONE.played_over(link, cell(2)).longer_s == pytest.approx(0.001, abs=1e-5)
    assert AT_ONE.played_over(link, cell(4)).longer_s == pytest.approx(0.002, abs=1e-5)
    assert AT_ONE.played_over(link, cell(16)).longer_s == pytest.approx(0.002, abs=1e-5)
    assert AT_ONE.played_over(link, cell(2, "other")).longer_s is None


def test_ranks_that_play_compute_at_once_so_contention_does_not_count_again() -> None:
    link = links(played(2, 0.101))
    there = AT_ONE.played_over(link, cell(2)).predict(cell(2), link.time)
    alone = AT_ONE.predict(cell(2), link.time)
    assert alone.step_s == pytest.approx(1.5 * 5 * 0.015, rel=1e-3)
    assert there.step_s == pytest.approx(5 * 0.015 + 0.001, rel=1e-3)
