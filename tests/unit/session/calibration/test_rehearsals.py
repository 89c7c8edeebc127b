"""Which steps a run has its ranks play, and when."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.costmodel.links.profile import LinkProfile
from scalebench.records.paths import RunPaths
from scalebench.session.calibration.rehearsals import Length, how_often, rehearse_steps
from scalebench.session.storing.store import RunStore
from scalebench.spec import Cell, Pipeline, Plain, StepPlan
from scalebench.spec.race import Race
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell, make_info

GPIPE = Pipeline(schedule="gpipe", microbatches=4)
LAB = VirtualHosts(link_bit_per_s=(100_000_000,), cpus_per_rank=0.2)
SPLIT_BACKWARD = Pipeline(schedule="zero-bubble", microbatches=4)


def pipelines(*sizes: int, strategy: Pipeline = GPIPE, **changes: object) -> list[Cell]:
    batch = {"global_batch": 32, "rank_batch": 32}
    return [make_cell("gpipe", n, strategy=strategy, **batch, **changes) for n in sizes]


@given(st.lists(st.tuples(st.floats(0.01, 30), st.floats(0.01, 30)), max_size=6))
def test_playing_stays_within_its_time_whatever_steps_there_are(pairs) -> None:
    lengths = [Length(*pair) for pair in pairs]
    played = how_often(lengths)
    assert sum(lengths[i].played_s(*times) for i, times in played.items()) <= 20.0 + 1e-9
    assert how_often([Length(0.1, 0.2), Length(1.0, 10.0)]) == {0: (2, 4)}


@pytest.mark.parametrize(
    "cells",
    [
        pipelines(1),
        pipelines(1, 2, device="cuda", backend="nccl"),
        pipelines(1, 2, virtual_hosts=LAB),
        pipelines(1, 2, oversubscribed=True),
        pipelines(1, 2, skip_reason="no"),
        pipelines(1, 2, strategy=SPLIT_BACKWARD),
        pipelines(1, 2, strategy=Pipeline(schedule="gpipe", microbatches=4, data_parallel=2)),
        [make_cell("plain", 1, strategy=Plain()), make_cell("plain", 2, strategy=Plain())],
        [make_cell("ddp", 1), make_cell("ddp", 2, oversubscribed=True)],
        [make_cell("ddp", 1), make_cell("ddp", 2, race=Race(samples=64, evaluate_every=8))],
        [make_cell("ddp", 1), make_cell("ddp", 2, steps=StepPlan(trace=False))],
    ],
)
def test_what_ranks_cannot_play_here_is_left_alone(tmp_path, cells) -> None:
    """Nothing is asked of a launcher, and no result is waited for."""
    link = LinkProfile(created="", version="", device="cpu", backend="gloo", points=(), fits=())
    run = RunStore.create(RunPaths(tmp_path), make_info(cells), link, None).run
    assert rehearse_steps(None, run, lambda *_: None)
