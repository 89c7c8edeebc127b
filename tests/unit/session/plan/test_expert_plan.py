"""Expert groups in a plan: their baselines, and what is skipped before anything trains."""

import pytest

from scalebench.session.plan.cells import skip_indivisible
from scalebench.spec import Case, Expert, Plain
from scalebench.spec.workload import Divisible
from tests.unit.session.plan.test_plan import RACE, plan_of, rows


@pytest.mark.parametrize(
    ("workload", "strategy", "said"),
    [
        ("gpt-moe-tiny", Expert(), None),
        ("gpt-moe-tiny", Expert(experts=9), "9 experts cannot be divided among 2 ranks"),
        ("gpt-moe-tiny", Expert(top_k=9), "top_k is 9 and there are 8 experts"),
        ("gpt-moe-tiny", Expert(capacity_factor=0), "lets no token through"),
        ("cnn-8", Expert(), "cnn-8 has no experts; choose gpt-moe"),
        ("cnn-8", Expert(top_k=1), "cnn-8 has no experts"),
    ],
)
def test_experts_that_cannot_be_divided_are_skipped_before_anything_trains(
    workload, strategy, said
):
    case = Case(name="expert", strategy=strategy, workload=workload)
    cell = rows(plan_of(case, sizes=(1, 2)))["expert", 2]
    assert cell.skip_reason is None if said is None else said in cell.skip_reason


def test_every_routing_has_a_baseline_of_its_own():
    cases = (
        Case(name="expert", strategy=Expert()),
        Case(name="one", strategy=Expert(top_k=1, capacity_factor=1.5)),
        Case(name="all", strategy=Expert(dropless=True)),
    )
    found = rows(plan_of(*cases, sizes=(1, 2), workload="gpt-moe"))
    plain = {name: cell for (name, _), cell in found.items() if isinstance(cell.strategy, Plain)}
    assert plain.keys() == {"plain", "plain-top-1-capacity-1-5", "plain-dropless"}
    for case, baseline in zip(("expert", "one", "all"), plain, strict=True):
        assert found[case, 2].workload == plain[baseline].workload
    assert found["one", 2].workload.top_k == 1


def test_no_rank_of_an_expert_group_can_evaluate_a_race():
    cases = (Case(name="plain", strategy=Plain()), Case(name="expert", strategy=Expert()))
    plan = plan_of(*cases, sizes=(2,), settings=RACE, workload="gpt-moe-tiny")
    cell = rows(plan)["expert", 2]
    assert "no rank of an expert group has all experts" in cell.skip_reason


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        ([8, 8], None),
        ([8, 5], "mine:model: 5 experts cannot be divided among 2 ranks"),
        ([], "mine:model has no experts"),
    ],
)
def test_a_users_workload_is_skipped_by_the_experts_it_says_it_has(experts, said):
    case = Case(name="expert", strategy=Expert())
    cells = plan_of(case, sizes=(1, 2), workload="mine:model", batch_size=8).cells
    found = skip_indivisible(cells, {"mine:model": Divisible("mine:model", experts=experts)})
    reasons = {c.skip_reason for c in found if c.case == "expert" and c.world_size == 2}
    (reason,) = reasons
    assert reason is None if said is None else said in reason
