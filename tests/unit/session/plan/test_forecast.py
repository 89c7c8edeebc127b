from scalebench.cli.text_tables import render_plan
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.plan.forecast import forecast
from scalebench.spec import Case, Ddp, Plain, StepPlan, Suite
from scalebench.spec.race import Race


def plan_of(*cases, num_gpus=0, **request):
    cases = cases or (Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp()))
    suite = Suite(name="ddp", question="?", cases=cases, steps=StepPlan(window_s=2.0))
    wanted = Request(**{"world_sizes": (1, 2), "workload": "gpt-tiny", **request})
    return make_plan(wanted, [suite], Machine(num_gpus=num_gpus, num_cores=4))


def test_launches_that_check_are_counted_apart_from_those_that_are_timed():
    plan = plan_of(repeats=5)
    found = forecast(plan, {})
    assert {(row.num_launches, row.num_checks) for row in found.rows} == {(6, 1)}
    assert "18 launches (15 timed; 3 check results and count memory), about" in render_plan(
        found, plan
    )
    skipped = forecast(plan_of(num_gpus=1), {}).rows[-1]
    assert (skipped.num_launches, skipped.num_checks) == (0, 0)


def test_how_long_a_race_takes_is_not_guessed_and_its_rows_take_no_turns():
    plain = Case(name="plain", strategy=Plain(), batch_size=16)
    race = Race(samples=512, evaluate_every=128)
    suite = Suite(name="race", question="?", cases=(plain,), workload="mlp", race=race)
    plan = make_plan(Request(world_sizes=(1,)), [suite], Machine(num_gpus=0, num_cores=4))
    found = forecast(plan, {})
    assert found.wall_s is None
    text = render_plan(found, plan)
    assert "the time depends on how long 512 samples of a race take to train on\n" in text
    assert "script" not in text and "take turns" not in text
