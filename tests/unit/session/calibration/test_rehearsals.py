"""Which steps a run has its ranks play, and when."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.rows.at_one_rank import PipelineAtOneRank, StepAtOneRank
from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.costmodel.links.times import LinkModel, LinkTime
from scalebench.costmodel.pipelines.stage_split import Layers
from scalebench.costmodel.pipelines.step import PipelineShape
from scalebench.costmodel.replay import CommRequest
from scalebench.costmodel.step import StepShape
from scalebench.launch.base import ProbeFailed
from scalebench.records.files import read_model
from scalebench.records.paths import RunPaths
from scalebench.records.probes import PlayedSteps, ProbeRecord
from scalebench.session.calibration import rehearsals
from scalebench.session.calibration.rehearsals import Length, how_often, rehearse_steps
from scalebench.session.storing.store import RunStore
from scalebench.spec import Cell, Pipeline, Plain, StepPlan
from scalebench.spec.probes import Rehearsal
from scalebench.spec.race import Race
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell, make_info, make_record, make_result

GPIPE = Pipeline(schedule="gpipe", microbatches=4)
LAB = VirtualHosts(link_bit_per_s=(100_000_000,), cpus_per_rank=0.2)
SPLIT_BACKWARD = Pipeline(schedule="zero-bubble", microbatches=4)


def shape(strategy: Pipeline) -> PipelineShape:
    layers = Layers((1.0,) * 4, (1024,) * 4)
    return PipelineShape(strategy, layers, {"F": 0.01, "B": 0.02}, 0.0, 0.0, num_samples=32)


class Players:
    """A launcher whose ranks play each step in 5 ms, or cannot."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.asked: list[Rehearsal] = []

    def probe(self, probe: Rehearsal, logs: Path) -> list[ProbeRecord]:
        self.asked.append(probe)
        if self.fails:
            raise ProbeFailed("rank 1: no")
        played = PlayedSteps(
            pipelines=((0.005, 0.006),) * len(probe.pipelines),
            exposed=((0.003, 0.004),) * len(probe.steps),
        )
        return [ProbeRecord(rank=0, played=played)]


def pipelines(*sizes: int, strategy: Pipeline = GPIPE, **changes: object) -> list[Cell]:
    batch = {"global_batch": 32, "rank_batch": 32}
    return [make_cell("gpipe", n, strategy=strategy, **batch, **changes) for n in sizes]


@pytest.fixture(autouse=True)
def _known_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    known = PipelineAtOneRank(pipeline=shape(GPIPE))
    monkeypatch.setattr(rehearsals, "step_at_one_rank", lambda _: known)


def run_of(root: Path, cells: list[Cell]) -> StoredRun:
    root.mkdir()
    link = LinkProfile(created="", version="", device="cpu", backend="gloo", points=(), fits=())
    return RunStore.create(RunPaths(root), make_info(cells), link, None).run


def play(players: Players, run: StoredRun) -> bool:
    return rehearse_steps(players, run, lambda *_: None)  # type: ignore[arg-type]


def test_pipelines_are_played_once_their_passes_are_known_and_kept(tmp_path: Path) -> None:
    cells, players = pipelines(1, 2), Players()
    run = run_of(tmp_path / "r", cells)
    assert not play(players, run)
    assert players.asked == []
    run.results[cells[0].id] = make_result(cells[0])
    assert play(players, run)
    alone, together = players.asked
    assert (alone.world_size, together.world_size) == (1, 2)
    assert [stage.forward_s for stage in alone.pipelines[0].stages] == [0.0]
    assert [stage.forward_s for stage in together.pipelines[0].stages] == [0.005, 0.005]
    (kept,) = read_model(run.paths.link_profile, LinkProfile).rehearsals
    assert (kept.suite, kept.case, kept.world_size) == cells[1].row_key
    assert kept.step_s == (0.005, 0.006)
    assert kept.action_s == pytest.approx(0.0055 / 8)


def test_steps_are_played_as_they_are_at_that_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = (CommRequest("all_reduce", 4000, 0.002, 0.01),)
    bare = StepAtOneRank(shape=StepShape(requests, 0.01, 0.002, 32, {16: 0.007}))
    monkeypatch.setattr(rehearsals, "step_at_one_rank", lambda _: bare)
    cells, players = [make_cell("ddp", 1), make_cell("ddp", 2)], Players()
    run = run_of(tmp_path / "r", cells)
    run.results[cells[0].id] = make_result(cells[0])
    assert play(players, run)
    (asked,) = players.asked
    (plan,) = asked.steps
    assert (asked.world_size, asked.pipelines, plan.computing_s) == (2, (), 0.007)
    (message,) = plan.operations
    assert (message.op, message.size_bytes) == ("all_reduce", 4000)
    assert (message.ready_s, message.needed_s) == (0.001, 0.005)
    (kept,) = read_model(run.paths.link_profile, LinkProfile).rehearsed_steps
    assert (kept.suite, kept.case, kept.world_size) == cells[1].row_key
    assert (kept.plan, kept.exposed_s) == (plan, (0.003, 0.004))


def on_hosts(root: Path, monkeypatch: pytest.MonkeyPatch, **of_clean_block: float) -> StoredRun:
    """Return a run of DDP on two virtual hosts whose step at N=1 takes 5.4 s."""
    requests = (CommRequest("all_reduce", 4000, 0.2, 1.0),)
    bare = StepAtOneRank(shape=StepShape(requests, 1.0, 0.2, 16))
    monkeypatch.setattr(rehearsals, "step_at_one_rank", lambda _: bare)
    monkeypatch.setattr(LinkModel, "time", lambda *_: LinkTime(1.5, 1.5, 1.5, (2,)))
    cells = [make_cell("ddp", n, virtual_hosts=LAB) for n in (1, 2)]
    run = run_of(root, cells)
    spec = run.info.spec.model_copy(update={"virtual_hosts": LAB})
    run.info = run.info.model_copy(update={"spec": spec})
    at_one = make_record()
    clean = at_one.blocks[1].model_copy(update=of_clean_block)
    record = at_one.model_copy(update={"blocks": [at_one.blocks[0], clean]})
    run.results[cells[0].id] = make_result(cells[0], ranks=[record])
    return run


def test_on_virtual_hosts_ranks_are_as_busy_as_the_step_was_and_play_fewer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    players = Players()
    run = on_hosts(tmp_path / "r", monkeypatch, cpu_s=1.08)  # of a first step of 5 s and 4 × 0.1 s
    assert play(players, run)
    (asked,) = players.asked
    (plan,) = asked.steps
    assert asked.virtual_hosts == LAB
    assert plan.computing_s == pytest.approx(1.2)
    assert plan.computing_cpu_s == pytest.approx(0.24)
    # 1.2 s of work and 0.7 s that 0.8 s of backward do not hide: 10.7 s in all, of at most 20
    assert (plan.blocks, plan.num_steps) == (1, 4)


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
def test_what_ranks_cannot_play_here_is_left_alone(tmp_path: Path, cells: list[Cell]) -> None:
    players = Players()
    assert play(players, run_of(tmp_path / "r", cells))
    assert players.asked == []


def test_a_pipeline_that_cannot_be_played_costs_nothing_else(tmp_path: Path) -> None:
    cells = pipelines(1, 2)
    run = run_of(tmp_path / "r", cells)
    run.results[cells[0].id] = make_result(cells[0])
    assert play(Players(fails=True), run)
    assert run.link is not None
    assert run.link.rehearsals == ()
