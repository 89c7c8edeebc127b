"""Rows beside the others of their kind: the fastest framework, the least number of steps."""

from types import SimpleNamespace

from scalebench.analysis.rows.against_fastest import (
    NO_FRAMEWORK,
    NO_ROUND,
    NOT_COMPARED,
    with_fastest,
)
from scalebench.analysis.rows.equal_loss import with_equal_losses
from scalebench.analysis.rows.frameworks import framework_of_row
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rows.frameworks import FrameworkFacts
from scalebench.records.summary import Correctness
from scalebench.spec import DeepSpeed
from scalebench.stats import Estimate
from tests.builders.runs import make_cell, make_failed, make_record, make_result
from tests.builders.summaries import make_row

FACTS = FrameworkFacts(versions={"deepspeed": "1.0"}, untested=[], settings={})


def framed(case, step_s, n=3, framework=None, **changes):
    step = None if step_s is None else Estimate(value=step_s, n=2)
    return make_row(case, n, step_s=step, framework=framework, **changes)


class Asked(SimpleNamespace):
    """Stands for the ratios of a run: remembers what was asked, and answers with it."""

    def step_ratio(self, row, base, comparisons):
        self.asked.append((row, base, comparisons))
        return None if row == "unknown" else Estimate(value=comparisons, n=1)


def compared(*rows):
    table = {(row.suite, row.case, row.world_size): row.case for row in rows}
    ratios = Asked(table=table, asked=[])
    return with_fastest(rows, ratios), ratios.asked


def test_every_row_is_held_against_the_fastest_of_its_kind():
    wrong = Correctness(status="deviates")
    rows = [
        framed("plain", 0.01, strategy="plain"),
        framed("ddp", 0.5),
        framed("deepspeed", 0.25, framework=FACTS),
        framed("fairscale", 0.75, framework=FACTS),
        framed("wrong", 0.1, correctness=wrong),
        framed("failed", None),
        framed("other-batch", 0.1, global_batch=99),
        framed("other-size", 0.1, n=2),
        framed("unknown", 0.9),
    ]
    found, asked = compared(*rows)
    assert asked == [
        ("ddp", "deepspeed", 3),
        ("deepspeed", "deepspeed", 3),
        ("fairscale", "deepspeed", 3),
        ("unknown", "deepspeed", 3),
    ]
    fastest = ("ddp", "deepspeed", 3)
    for row in found[1:4]:
        assert row.against_fastest.fastest == fastest
        assert row.against_fastest.step_ratio.value == 3
    reasons = {row.case: row.unavailable.get("against_fastest") for row in found}
    assert reasons == {
        "plain": NOT_COMPARED, "ddp": None, "deepspeed": None, "fairscale": None,
        "wrong": NOT_COMPARED, "failed": NOT_COMPARED, "other-batch": NO_FRAMEWORK,
        "other-size": NO_FRAMEWORK, "unknown": NO_ROUND,
    }  # fmt: skip


def test_a_framework_alone_is_compared_with_itself():
    (row,), asked = compared(framed("deepspeed", 0.25, framework=FACTS))
    assert asked == [("deepspeed", "deepspeed", 1)]
    assert row.against_fastest.step_ratio.value == 1


def trained(case, *losses, n=2):
    """Launches, each with its loss by step; the last two are of the clean window."""
    cell = make_cell(case, n)
    measured = {
        repeat: make_result(
            cell, ranks=[make_record(r, (0.1,) * (len(of) - 2), loss=of) for r in range(n)]
        )
        for repeat, of in enumerate(losses)
    }
    return make_row(case, n, loss_last=1.0), Launches(cell, measured=measured)


def test_losses_are_those_after_as_many_steps_as_all_trained():
    rows = [
        trained("ddp", [9, 8, 7, 6, 5], [1, 1, 1]),
        trained("zero1", [9, 7, 5, 3]),
        trained("fsdp", [9, 6, 3, 2, 1, 0]),
    ]
    larger = trained("larger", [4, 3, 2])
    larger = (larger[0].model_copy(update={"global_batch": 64}), larger[1])
    silent = trained("silent", [1, 1, 1])
    silent = (silent[0].model_copy(update={"loss_last": None}), silent[1])
    failed = (make_row("failed", 2), Launches(make_cell("failed", 2)))
    every = [*rows, larger, silent, failed]
    table = {("ddp", row.case, 2): launches for row, launches in every}
    found = with_equal_losses([row for row, _ in every], table)
    assert [(row.loss_equal, row.loss_equal_steps) for row in found[:4]] == [
        (6, 4), (3, 4), (2, 4), (2, 3)
    ]  # fmt: skip
    for row in found[4:]:
        assert (
            row.unavailable["loss_equal"] == row.unavailable["loss_equal_steps"] == ("not recorded")
        )


def framework(*facts, strategy=None):
    cell = make_cell("deepspeed", 2, strategy=strategy or DeepSpeed())
    ranks = [make_record(rank, facts=own) for rank, own in enumerate(facts)]
    return framework_of_row(Launches(cell, measured={0: make_result(cell, ranks=ranks)}))


def test_the_facts_of_a_framework_are_those_of_the_first_rank():
    told = FACTS.model_dump()
    other = told | {"versions": {"deepspeed": "7.0"}}
    found = framework({"framework": told}, {"framework": other})
    assert found.values == {"framework": FACTS} and found.stamps == []
    two = told | {"untested": ["a", "b"], "versions": {"a": "1", "b": "2"}, "tested": {"b": "3"}}
    stamps = framework({"framework": two}, {}).stamps
    assert stamps == ["version not tested: a 1, b 2 (tested: 3)"]
    assert framework({}, {"framework": told}).reasons == {
        "framework": "the launch did not record it"
    }


def test_rows_without_a_framework_say_why():
    plain = make_cell("ddp", 2)
    found = framework_of_row(Launches(plain, measured={0: make_result(plain)}))
    assert found.reasons == {"framework": "no other framework trains it"}
    cell = make_cell("deepspeed", 2, strategy=DeepSpeed())
    failed = framework_of_row(Launches(cell, measured={0: make_failed(cell)}))
    assert failed.reasons == {"framework": "no launch of this row succeeded"}
