"""What only a script's row has: time outside of its steps, by rank, launch and kind."""

import pytest

from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.script import script_of_row
from scalebench.records.rank import Block, StepGap
from scalebench.records.rows.script import (
    HostWaitPlace,
    HostWaits,
    LoaderSettings,
    LongestGap,
    ProcessGroups,
    ScriptFacts,
    Wrapper,
)
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_failed, make_record, make_result

TARGET = ScriptTarget(name="train", program="train.py")
CELL = make_cell("script", 2, strategy=Script(), workload=TARGET, backend=None)
BLOCKS = [
    Block(phase="warmup", first=0, count=2),
    Block(phase="clean", first=2, count=3),
    Block(phase="paired", first=5, count=2),
    Block(phase="clean", first=7, count=1),
]
STEP_S = [90.0, 80.0, 1.0, 2.0, 3.0, 70.0, 60.0, 4.0]
"""The clean steps 2, 3, 4 and 7 take 10 s."""


def gap(step, seconds, evaluation_s=None, checkpoint_s=None):
    return StepGap(step=step, seconds=seconds, evaluation_s=evaluation_s, checkpoint_s=checkpoint_s)


def record(rank, *gaps, slow=1.0, **changes):
    steps = [slow * step_s for step_s in STEP_S]
    fields = {"step_s": steps, "loss": [], "blocks": BLOCKS, "gaps": list(gaps)}
    return make_record(rank, **fields | changes)


def row_of(*launches, first=0):
    """A row whose launches have these ranks."""
    measured = {
        first + i: make_result(CELL.model_copy(update={"repeat": first + i}), ranks=list(ranks))
        for i, ranks in enumerate(launches)
    }
    return Launches(CELL, measured=measured, num_planned=len(launches))


def outside(*launches, first=0):
    return script_of_row(row_of(*launches, first=first)).values["outside_step"]


def test_the_rank_that_has_most_is_told_over_all_launches():
    """Rank 0 has 4 s in the first launch and 1 s in the second; rank 1 has 3 and 3 s."""
    found = outside(
        [record(0, gap(2, 4.0), gap(5, 50.0)), record(1, gap(3, 3.0), slow=2.0)],
        [record(0, gap(7, 1.0)), record(1, gap(1, 60.0), gap(2, 2.0), gap(4, 1.0), slow=2.0)],
        first=5,
    )
    assert (found.seconds, found.num_gaps) == (6.0, 3)
    assert found.share == 6.0 / 40.0
    assert (found.evaluation_s, found.checkpoint_s, found.other_s) == (None, None, None)
    assert found.largest == [
        LongestGap(step=2, rank=0, repeat=5, seconds=4.0),
        LongestGap(step=3, rank=1, repeat=5, seconds=3.0),
        LongestGap(step=2, rank=1, repeat=6, seconds=2.0),
    ]


def test_a_gap_stands_once_by_the_rank_where_it_was_longest():
    found = outside(
        [record(0, gap(2, 1.0), gap(3, 5.0)), record(1, gap(2, 2.0), gap(3, 4.5))],
        [record(0, gap(2, 0.5)), record(1)],
    )
    assert [(g.step, g.rank, g.repeat, g.seconds) for g in found.largest] == [
        (3, 0, 0, 5.0),
        (2, 1, 0, 2.0),
        (2, 0, 1, 0.5),
    ]
    assert (found.seconds, found.num_gaps) == (6.5, 3)


def test_without_a_gap_nothing_is_outside():
    found = outside([record(0), record(1)])
    assert (found.seconds, found.share, found.num_gaps, found.largest) == (0.0, 0.0, 0, [])
    assert (found.evaluation_s, found.checkpoint_s, found.other_s) == (0.0, 0.0, None)
    unstepped = [record(0, blocks=BLOCKS[:1]), record(1, blocks=BLOCKS[:1])]
    assert outside(unstepped).share == 0.0  # no clean step: nothing to divide by


def test_only_evaluation_and_checkpoints_are_outside_of_the_steps():
    """Version 0.1 also noted what is neither: that is work of the training."""
    found = outside([record(0, gap(2, 4.0, 1.5, 0.5), gap(4, 2.0, 0.25, 0.0), gap(3, 9.0, 0, 0))])
    assert (found.evaluation_s, found.checkpoint_s, found.other_s) == (1.75, 0.5, None)
    assert (found.seconds, found.num_gaps) == (2.25, 2)
    assert [one.seconds for one in found.largest] == [2.0, 0.25]
    # Parts that are measured apart may come to more than the whole.
    assert outside([record(0, gap(2, 1.0, 0.75, 0.5)), record(1)]).seconds == 1.0


@pytest.mark.parametrize(
    ("evaluation_s", "checkpoint_s", "kind"),
    [
        (5.0, 2.0, "evaluation"),
        (4.0, 4.0, "evaluation"),
        (2.0, 4.0, "checkpoint"),
        (None, 8.0, None),
        (8.0, None, None),
    ],
)
def test_a_gap_of_ten_seconds_is_named_by_its_larger_part(evaluation_s, checkpoint_s, kind):
    found = outside([record(0, gap(2, 10.0, evaluation_s, checkpoint_s)), record(1)])
    (largest,) = found.largest
    assert largest.kind == kind
    assert (found.evaluation_s is None) == (kind is None)


def test_a_row_of_another_strategy_has_reasons():
    cell = make_cell("ddp", 2)
    fields = script_of_row(Launches(cell, measured={0: make_result(cell)}))
    assert fields.values == {} and fields.stamps == []
    assert fields.reasons == {
        "outside_step": "only a script does something else between its steps",
        "wrappers": "the strategy says how the model is distributed",
        "script": "it is no script of the user's own",
    }


def test_a_row_without_a_launch_that_succeeded_has_reasons():
    fields = script_of_row(Launches(CELL, measured={0: make_failed(CELL)}))
    assert fields.values == {}
    assert fields.reasons == dict.fromkeys(
        ("outside_step", "wrappers", "script"), "no launch of this row succeeded"
    )


def test_one_rank_that_did_not_note_its_gaps_is_enough_not_to_know():
    fields = script_of_row(row_of([record(0, gap(2, 1.0)), record(1, gaps=None)]))
    assert fields.reasons["outside_step"] == "the launch did not record it"
    assert "outside_step" not in fields.values


def test_marks_of_scripts_that_ended_early_or_had_to_be_killed():
    def stamps(*ranks):
        return script_of_row(row_of(*ranks)).stamps

    killed = {"facts": {"killed_at_end": True}}
    assert stamps([record(0), record(1)]) == []
    assert stamps([record(0, ended_after=9), record(1)], [record(0), record(1, ended_after=7)]) == [
        "ended early: after 7 steps"
    ]
    assert stamps([record(0), record(1, **killed)], [record(0), record(1, **killed)]) == [
        "killed at its end: rank 1"
    ]
    assert stamps([record(1, **killed), record(0)], [record(1), record(0, **killed)]) == [
        "killed at its end: ranks 0, 1"
    ]


FACTS = {
    "host_waits": {
        "steps": 4,
        "calls": 10,
        "places": [{"file": "train.py", "line": 37, "call": ".item()", "calls": 10}],
    },
    "unused_search_s": 0.01,
    "loader": {"num_workers": 3},
    "groups": [{"name": "world", "ranks": 2, "count": 1}],
    "wrappers": [{"kind": "DistributedDataParallel", "bucket_bytes": 5}],
}


def test_what_was_seen_of_the_code_is_that_of_rank_0():
    other = {"facts": {"groups": [], "wrappers": [{"kind": "another"}]}}
    values = script_of_row(row_of([record(0, facts=FACTS), record(1, **other)])).values
    place = HostWaitPlace(file="train.py", line=37, call=".item()", calls=10)
    assert values["script"] == ScriptFacts(
        host_waits=HostWaits(per_step=2.5, steps=4, places=[place]),
        unused_search_s=0.01,
        loader=LoaderSettings(num_workers=3),
        groups=[ProcessGroups(name="world", ranks=2, count=1)],
    )
    assert values["wrappers"] == [Wrapper(kind="DistributedDataParallel", bucket_bytes=5)]


def test_what_every_rank_waits_for_its_batches_is_that_of_the_rank_that_waits_least():
    """Clean steps that count: the second and third of the first block."""
    waits = {0: [9, 9, 9, 0.3, 0.5, 9, 9, 9], 1: [9, 9, 9, 0.2, 0.2, 9, 9, 9]}
    ranks = [record(rank, facts=FACTS, data_s=seconds) for rank, seconds in waits.items()]
    found = script_of_row(row_of(ranks, ranks)).values["script"]
    assert found.batch_wait_s == pytest.approx(0.2)


def test_facts_without_host_waits_have_a_reason():
    facts = {"groups": [], "host_waits_unavailable": "no step was traced"}
    found = script_of_row(row_of([record(0, facts=facts), record(1)])).values["script"]
    assert found == ScriptFacts(host_waits_unavailable="no step was traced")


@pytest.mark.parametrize(
    "facts",
    [
        {"wrappers": [{"bucket_bytes": 5}], "loader": {}},
        {"groups": [{"name": 1}], "wrappers": []},
        {"groups": [], "host_waits": {"steps": 1}, "wrappers": None},
        {"groups": [], "host_waits": 5},
        {},
    ],
)
def test_facts_of_another_version_are_not_told(facts):
    fields = script_of_row(row_of([record(0, facts=facts), record(1)]))
    assert fields.reasons["script"] == "the launch did not record it"
    assert fields.reasons["wrappers"] == "the modules have no wrapper that is recognised"
