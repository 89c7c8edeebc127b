"""Which rows score the search's models, and what each is held against."""

from dataclasses import replace

import pytest

from scalebench.analysis.search.ranked import _of_meshes, _ranked, _settings, result_of
from scalebench.analysis.search.scores import (
    ScoredRow,
    Scores,
    activation_ratio,
    choice_of_row,
    data_bytes,
    is_scored,
    model_of,
    peaks_of,
    scored_rows,
    scores_of,
)
from scalebench.analysis.search.split_backward import split_backward_s
from scalebench.costmodel.links.times import NoFit
from scalebench.costmodel.search.choice import Choice, choices, columns_of
from scalebench.costmodel.search.links import NominalLinks
from scalebench.costmodel.search.memory import activation_bytes, memory_bytes, stage_table
from scalebench.costmodel.search.ranking import search
from scalebench.costmodel.search.reasons import why_faster
from scalebench.costmodel.search.step.parts import step_parts
from scalebench.costmodel.search.strategies import NO_LAYERS, choice_of
from scalebench.costmodel.search.whole_model import WholeModel
from scalebench.spec import Ddp, Pipeline, Plain
from scalebench.spec.presets import PRESETS, MoeShape
from scalebench.stats import Estimate
from tests.builders.summaries import make_row, make_summary
from tests.unit.costmodel.search.jobs import ROUTED, SMALL, SPEED, TWO_LEVELS, job

JOB = job(7, 99)
PLAIN = choice_of(Plain(), 1)


def row_of(strategy="ddp", world_size=2, step_s=0.5, batch=16, peak=None, settings=None, **changes):
    fields = {
        "workload": SMALL.name,
        "global_batch": batch,
        "rank_batch": max(1, batch // world_size),
        "strategy_settings": settings or {},
        "peak_memory_bytes": peak,
        "memory": {},
    }
    step = None if step_s is None else Estimate(value=step_s, n=1)
    return make_row(strategy, world_size, strategy=strategy, step_s=step, **fields | changes)


def at(world_size, batch, of=JOB):
    return replace(of, world_size=world_size, batch=batch)


def plain_peak(batch, ratio, data=0.0):
    """The peak of the plain model whose activations are ``ratio`` times what is counted."""
    alone = replace(at(1, batch), held_bytes=0.0, activation_ratio=1.0)
    of = columns_of([PLAIN])
    layers, _ = stage_table(alone, of)
    counted = float(activation_bytes(alone, of, layers)[0])
    state = float(memory_bytes(alone, of)[0]) - counted
    return round(state + ratio * counted + data)


def plain_row(batch, ratio, data=0, **changes):
    peak = plain_peak(batch, ratio, data)
    return row_of("plain", 1, batch=batch, peak=peak, memory={"data_bytes": data}, **changes)


def test_activations_are_what_state_and_data_leave_of_the_peak():
    """What the job itself holds and takes for its activations is no part of it."""
    held = replace(JOB, held_bytes=1e9, activation_ratio=7.0)
    for of in (JOB, held):
        assert activation_ratio(of, [plain_row(16, 0.5, 1000)]) == pytest.approx(0.5, rel=1e-6)
    several = [plain_row(8, 1.5), plain_row(16, 2.5, 5000), plain_row(32, 4.5)]
    assert activation_ratio(JOB, several) == pytest.approx(2.5, rel=1e-6)
    small = plain_row(16, 1.0).model_copy(update={"peak_memory_bytes": 1})
    assert activation_ratio(JOB, [small]) == 0.0
    unknown = plain_row(16, 1.0).model_copy(update={"peak_memory_bytes": None})
    mixed = plain_row(16, 9.0, settings={"autocast": True})
    assert activation_ratio(JOB, [unknown, mixed, plain_row(16, 3.0)]) == pytest.approx(3, rel=1e-6)
    assert activation_ratio(JOB, [unknown, mixed]) == activation_ratio(JOB, []) == 1.0


def test_data_is_the_most_that_a_row_knows():
    rows = [row_of(memory=memory) for memory in ({"data_bytes": 5}, {"data_bytes": 9}, {})]
    assert data_bytes([*rows, row_of(memory={"data_bytes": None})]) == 9
    assert data_bytes(rows[2:]) == data_bytes([]) == 0.0


@pytest.mark.parametrize(
    ("strategy", "world_size", "status", "scored"),
    [
        ("ddp", 2, "ok", True),
        ("ddp", 1, "ok", False),
        ("plain", 1, "ok", True),
        ("plain", 1, "failed", False),
        ("ddp", 2, "failed", False),
        ("plain", 2, "ok", True),
    ],
)
def test_at_one_rank_only_the_plain_model_is_predicted(strategy, world_size, status, scored):
    assert is_scored(row_of(strategy, world_size, status=status)) == scored


def test_a_row_is_held_against_the_step_and_peak_of_its_own_size_and_batch():
    rows = [
        row_of("ddp", 2, 0.5, peak=123),
        row_of("fsdp", 4, 0.25, batch=32, settings={"reshard_after_forward": False}),
    ]
    found = scored_rows(JOB, rows)
    for one, row, world_size, batch in zip(found, rows, (2, 4), (16, 32), strict=True):
        of, here = columns_of([choice_of_row(row)]), at(world_size, batch)
        assert one == ScoredRow(
            case=row.case,
            workload="small",
            world_size=world_size,
            measured_s=row.step_s.value,
            predicted_s=float(step_parts(here, of).step_s[0]),
            measured_bytes=row.peak_memory_bytes,
            predicted_bytes=float(memory_bytes(here, of)[0]),
        )


class NoLinks(NominalLinks):
    """Links that nobody has measured."""

    def time(self, *_):
        raise NoFit("nothing was calibrated")


UNLINKED = replace(JOB, links=NoLinks(TWO_LEVELS, ""))


def test_a_row_without_a_link_has_a_peak_alone():
    (found,) = scored_rows(UNLINKED, [row_of("ddp", 2, 0.5, peak=123)])
    of = columns_of([choice_of_row(row_of())])
    assert (found.predicted_s, found.measured_bytes) == (None, 123)
    assert found.predicted_bytes == float(memory_bytes(at(2, 16, UNLINKED), of)[0])


PIPED = {"schedule": "1f1b", "microbatches": 16}


@pytest.mark.parametrize(
    "row",
    [
        row_of(workload="another"),
        row_of(status="failed"),
        row_of(world_size=1),
        row_of(step_s=None),
        row_of("plain", 2),
        row_of("local-sgd"),
        row_of("from-the-future"),
        row_of("pipeline", settings=PIPED | {"schedule": "zero-bubble"}),
        row_of("pipeline", 5, batch=80, settings=PIPED),  # the model has four layers
    ],
)
def test_rows_that_score_nothing(row):
    assert scored_rows(JOB, [row]) == []


def test_a_pipeline_of_as_many_stages_as_layers_is_scored():
    assert len(scored_rows(JOB, [row_of("pipeline", 4, batch=64, settings=PIPED)])) == 1
    assert len(scored_rows(JOB, [row_of(settings={"autocast": True})])) == 1
    slow = replace(JOB, speed=replace(SPEED, flop_s={"float32": 1e-12}))
    assert scored_rows(slow, [row_of(settings={"autocast": True})]) == []


WHOLE = replace(JOB, model=WholeModel.of("small", 1_000_000, 3, 1e9))


def test_of_a_model_that_was_measured_whole_samples_and_state_are_divided_alone():
    kept = [row_of(), row_of("fsdp", 4), row_of("zero1")]
    others = [row_of("tensor"), row_of("context"), row_of(settings={"checkpointing": True})]
    assert [one.case for one in scored_rows(WHOLE, [*kept, *others])] == ["ddp", "fsdp", "zero1"]
    assert len(scored_rows(JOB, [row_of("tensor"), row_of(settings={"checkpointing": True})])) == 2


def test_peaks_of_runs_are_over_the_prediction_with_their_own_activations():
    """Two runs; in the first a rank holds 3000 bytes of data, and has twice the activations."""
    first = [
        plain_row(16, 2.0, 3000),
        row_of("ddp", 2, None, peak=5_000_000),
        row_of("ddp", 2, peak=None),
        row_of("fsdp", 4, peak=7_000_000, batch=32),
        row_of("ddp", 1, peak=1),
        row_of("local-sgd", 2, peak=1),
        row_of("ddp", 2, peak=1, status="oom"),
        row_of("pipeline", 5, batch=80, settings=PIPED, peak=1),
        row_of("pipeline", 4, batch=64, settings=PIPED, peak=6_000_000),
        row_of("ddp", 2, peak=1, workload="unknown"),
    ]
    second = [row_of("ddp", 2, peak=1)]  # without a plain row
    third = [plain_row(8, 0.5), row_of("zero1", 2, peak=4_000_000)]
    summaries = [make_summary(rows) for rows in (first, second, third)]
    models = {"small": SMALL}
    found = peaks_of(replace(JOB, model=WholeModel.of("x")), summaries, models.get)
    own = replace(JOB, held_bytes=3000.0, activation_ratio=activation_ratio(JOB, first))
    last = replace(JOB, held_bytes=0.0, activation_ratio=activation_ratio(JOB, third))

    def peak(row, of):
        here = at(row.world_size, row.global_batch, of)
        return row.peak_memory_bytes / float(
            memory_bytes(here, columns_of([choice_of_row(row)]))[0]
        )

    expected = [1.0, *(peak(first[i], own) for i in (1, 3, 8)), 1.0, peak(third[1], last)]
    assert found == pytest.approx(expected, rel=1e-6)
    assert peaks_of(JOB, summaries, {}.get) == []


def test_peaks_of_a_whole_model_leave_out_what_divides_its_inside():
    rows = [plain_row(16, 1.0), row_of("ddp", 2, peak=10**7), row_of("tensor", 2, peak=10**7)]
    assert len(peaks_of(JOB, [make_summary(rows)], {"small": WHOLE.model}.get)) == 2
    assert len(peaks_of(JOB, [make_summary(rows)], {"small": SMALL}.get)) == 3


def scored(measured_s=1.0, predicted_s=1.0, world_size=2, measured=None, predicted=1000.0):
    return ScoredRow(
        case="c", workload="w", world_size=world_size, measured_s=measured_s,
        predicted_s=predicted_s, measured_bytes=measured, predicted_bytes=predicted,
    )  # fmt: skip


def test_error_and_margin_of_rows():
    """Errors of ln 2 and −ln 4; a row of one rank and one without a link have no part in it."""
    rows = [
        scored(1.0, 2.0, measured=1500, predicted=1000.0),
        scored(4.0, 1.0, 3, measured=1250, predicted=500.0),
        scored(1.0, 9.0, 1, measured=0),
        scored(1.0, None),
    ]
    found = scores_of(rows)
    assert found.error == pytest.approx((5 / 2) ** 0.5 * 0.6931471805599453)
    assert (found.num_steps, found.margin, found.num_peaks) == (2, 1.5, 2)
    assert found.rows == tuple(rows)
    assert scores_of([]) == Scores()
    assert scores_of([scored(measured=500)]).margin == 0.0


def test_rows_as_configurations_and_workloads_as_models():
    settings = {"bucket_mb": 5.0, "accumulate": 2}
    assert choice_of_row(row_of(settings=settings)) == choice_of(Ddp(**settings), 2)
    assert "from-the-future" in str(choice_of_row(row_of("from-the-future")))
    assert model_of("gpt-tiny").name == "gpt-tiny" and model_of("no such") is None
    routed = next(name for name, shape in PRESETS.items() if isinstance(shape, MoeShape))
    assert model_of(routed).experts > 1


def test_two_calls_are_held_against_the_step_of_the_first_stages_share():
    """Of two stages the first has half of the layers; the median over three rows."""
    settings = PIPED | {"schedule": "zero-bubble"}
    strategy = Pipeline(schedule="zero-bubble", microbatches=16)
    of = columns_of([choice_of(strategy, 2)])
    here = at(2, 16)
    predicted_s = float(step_parts(here, of).step_s[0])
    share = float(stage_table(here, of)[0][0]) / 4
    rows = [row_of("pipeline", 2, predicted_s + more, settings=settings) for more in (1, 7, 2)]
    assert split_backward_s(JOB, rows) == pytest.approx(2 / 16 / share)
    assert split_backward_s(UNLINKED, rows) == 0.0
    mixed = row_of("pipeline", 2, 9.0, settings=settings | {"autocast": True})
    single = replace(JOB, speed=replace(SPEED, flop_s={"float32": 1e-12}))
    assert split_backward_s(single, [mixed]) == 0.0 < split_backward_s(JOB, [mixed])


def test_every_field_of_a_result():
    known = job(4, 16, memory_limit_bytes=10**9, margin=0.25)
    ranking = search(known)
    scores = Scores(error=0.05, num_steps=3)
    found = result_of(known, ranking, scores, "from here", ("a", "b"), 1.5)
    best = choices(known, ranking.best)
    assert (found.workload, found.num_parameters) == ("small", SMALL.num_parameters)
    assert (found.world_size, found.global_batch, found.device) == (4, 16, "cpu")
    assert (found.memory_limit_bytes, found.margin, found.margin_told) == (10**9, 0.25, "from here")
    assert (found.assumptions, found.took_s, found.scores) == (("a", "b"), 1.5, scores)
    assert found.num_candidates == ranking.num_candidates
    assert (found.num_fitting, found.num_evaluated) == (ranking.num_fitting, ranking.num_evaluated)
    assert found.why == why_faster(best[0], best[1])
    assert found.rejected is None or found.rejected.strategy is not None
    for told, chosen in zip(found.best, best, strict=True):
        assert told.case == chosen.name and told.step_s == chosen.step_s
        assert (told.low_s, told.high_s) == pytest.approx(
            (told.step_s / 2.718281828459045**0.082245, told.step_s * 2.718281828459045**0.082245)
        )
        assert (told.strategy is None) == (told.cannot_run is not None)
    assert len(found.trained) == len(choices(known, ranking.trained))
    assert len(found.front) == len(choices(known, ranking.front))


def test_one_mesh_alone_beats_nothing():
    known = job(1, 4)
    found = result_of(known, search(known), Scores(), "", (), 0.0)
    assert len(found.best) == 1 and found.why == "There is no other that fits."
    assert found.probability == 1.0


def test_a_configuration_says_how_it_is_run_or_why_it_is_not():
    told = _ranked(job(4, 16), Choice(data=4, step_s=2.0), 0.1)
    assert told.strategy == {"kind": "ddp"} and told.cannot_run is None
    routed = Choice(data=2, expert=1, pipeline=2, schedule="gpipe", microbatches=2)
    cannot = _ranked(job(4, 16, model=ROUTED), routed, 0.1)
    assert (cannot.strategy, cannot.cannot_run) == (None, NO_LAYERS)


def test_a_mesh_stands_once_whatever_its_stage():
    ways = [
        Choice(data=2, shard=2, zero=1, step_s=1.0),
        Choice(data=2, shard=2, zero=3, step_s=2.0),
        Choice(data=4, step_s=3.0),
        Choice(data=4, step_s=4.0),
    ]
    assert _of_meshes(ways) == [1.0, 3.0]


def test_a_strategy_is_told_by_what_is_not_the_default():
    assert _settings(Ddp()) == {"kind": "ddp"}
    assert _settings(Ddp(bucket_mb=5.0)) == {"kind": "ddp", "bucket_mb": 5.0}
