"""Rows of users' scripts: the batch that was counted, the baseline, time outside of the steps."""

import pytest

from scalebench.analysis.summarise import summarise
from scalebench.report import render_table
from scalebench.spec import Script
from scalebench.spec.script import ScriptTarget
from tests.builders.runs import make_cell, make_record, make_result, make_run

TARGET = ScriptTarget(name="train", program="train.py")


def cell(n, **changes):
    fields = {"workload": TARGET, "scaling": "weak", "global_batch": n, "rank_batch": 1}
    return make_cell("script", n, strategy=Script(), backend=None, **fields | changes)


def result(n, step_s, cell_changes=None, **of_rank):
    fields = {"samples_per_step": 16.0, "gaps": [], "loss": [], "facts": {"backend": "gloo"}}
    ranks = [make_record(rank, (step_s,) * 4, **fields | of_rank) for rank in range(n)]
    made = make_result(cell(n, **cell_changes or {}), step_s)
    return made.model_copy(update={"ranks": ranks})


def rows(*results):
    summary = summarise(make_run(results))
    return {row.world_size: row for row in summary.rows}, summary


def test_steps_of_different_numbers_of_optimizer_calls_have_no_ratio():
    facts = [{"backend": "gloo", "calls_per_step": calls} for calls in (2, 11)]
    found, _ = rows(result(1, 0.1, facts=facts[0]), result(2, 0.125, facts=facts[1]))
    assert found[2].speedup is None and found[2].efficiency is None
    told = "a step is 11 optimizer calls here and 2 in the baseline: call scalebench.step()"
    assert told in found[2].unavailable["speedup"] and told in found[2].unavailable["efficiency"]
    alike, _ = rows(result(1, 0.1, facts=facts[0]), result(2, 0.125, facts=facts[0]))
    assert alike[2].speedup.value == pytest.approx(1.6)


def uncounted(facts_1, facts_2):
    """Rows of steps of 0.1 and 0.0625 s whose samples are not known."""
    of_rank = {"samples_per_step": None}
    return rows(
        result(1, 0.1, facts={"backend": "gloo", **facts_1}, **of_rank),
        result(2, 0.0625, facts={"backend": "gloo", **facts_2}, **of_rank),
    )


def test_where_nothing_tells_the_scaling_there_is_no_ratio_and_it_is_asked_for():
    found, summary = uncounted({"backwards_per_step": 1.0}, {"backwards_per_step": 1.0})
    assert {row.scaling for row in found.values()} == {"unknown"}
    two = found[2]
    assert [two.speedup, two.efficiency, two.efficiency_wrapped, two.budget] == [None] * 4
    assert "--scaling" in two.unavailable["efficiency"]
    table = " ".join(render_table(summary, width=140).split())
    assert "strong or weak scaling not known" in table
    assert "efficiency unknown: give --scaling or --samples-per-step" in table


DDP = {"kind": "DistributedDataParallel"}
ROWS = {"kind": "DTensor", "mesh": {"dim 0": 2}, "placements": ["Shard(dim=1)"]}


def fed(*given, losses=(2.0, 1.5), batches=()):
    """What the watch notes of a rank that looked at nothing but its data."""
    losses = [[step, loss] for step, loss in enumerate(losses)]
    data = {"given": list(given), "losses": losses, "batches": list(batches)}
    names = ("passes", "prints", "states", "rates", "repeated_orders", "moments")
    nothing = {name: [] for name in names} | {"repeated": 0, "distinct": 0}
    return {"replicas_unavailable": "not looked at"} | nothing | data


@pytest.mark.parametrize(
    ("ranks", "wrapper", "same"),
    [
        ((fed(3, 4), fed(3, 4)), DDP, True),
        ((fed(3, 4), fed(3, 4, losses=(2.0, 1.5, 1.0))), DDP, True),
        ((fed(3, 3), fed(3, 3)), DDP, None),  # one batch, as benchmarks have
        ((fed(3, 4), fed(3, 5)), DDP, None),
        ((fed(3, 4), fed(3, 4, losses=(2.0, 1.6))), DDP, None),  # more goes in than is seen
        ((fed(3, 4, losses=()), fed(3, 4, losses=())), DDP, None),
        ((fed(3, 4, losses=(None, None)),) * 2, DDP, None),
        ((fed(0, 0), fed(0, 0)), DDP, None),  # on a GPU
        ((fed(3), fed(3)), DDP, None),
        ((fed(3, 4), fed(3, 4)), ROWS, None),  # layers are divided
        ((fed(batches=[1, 2, 3]),) * 2, DDP, True),
        ((fed(batches=[1, 2, 3]),) * 2, ROWS, None),
        ((fed(batches=[1, 2, 3]),) * 2, {"kind": "FSDPModule", "data_ranks": 1}, None),
        ((fed(3, 4, batches=[1, 2, 3]), fed(3, 4, batches=[1, 2, 5])), DDP, False),
    ],
)
def test_ranks_that_are_given_the_same_do_the_work_of_one(ranks, wrapper, same):
    wrappers = [wrapper, *([ROWS] if wrapper["kind"] == "FSDPModule" else [])]
    two = result(2, 0.1)
    facts = {"backend": "gloo", "groups": [], "wrappers": wrappers}
    looked_at = [
        rank.model_copy(update={"facts": facts | {"checks": one}})
        for rank, one in zip(two.ranks, ranks, strict=True)
    ]
    found, _ = rows(result(1, 0.1), two.model_copy(update={"ranks": looked_at}))
    assert found[2].script.checks.same_batches is same


@pytest.mark.parametrize(
    ("others", "why"),
    [((), "the script was not run at N=1"), ((1,), "no launch of the script at N=1 succeeded")],
)
def test_a_script_without_its_base_says_so_in_its_own_words(others, why):
    failed = [result(n, 0.1).model_copy(update={"status": "failed", "ranks": []}) for n in others]
    found, _ = rows(*failed, result(2, 0.1), result(4, 0.1))
    assert found[4].unavailable["efficiency"] == why
