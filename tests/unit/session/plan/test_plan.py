import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.cli.text_tables import render_plan
from scalebench.errors import UsageError
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.plan.cells import skip_indivisible, unfit_for_race
from scalebench.session.plan.forecast import forecast
from scalebench.session.plan.prepare import why_missing
from scalebench.spec import (
    Accelerate,
    Case,
    Context,
    Ddp,
    DeepSpeed,
    Expert,
    Fsdp,
    Horovod,
    Mesh,
    PipeDream,
    PipeDream2BW,
    Pipeline,
    Plain,
    Suite,
    Tensor,
)
from scalebench.spec.race import Race
from scalebench.spec.virtual_hosts import VirtualHosts
from scalebench.spec.workload import ContextPlan, Divisible, TensorPlan

CPU_4 = Machine(num_gpus=0, num_cores=4)
GPU_4 = Machine(num_gpus=4, num_cores=32)


def suite(*cases, name="ddp", **settings):
    cases = cases or (Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp()))
    return Suite(name=name, question="How well does it scale?", cases=cases, **settings)


def plan_of(*cases, machine=CPU_4, sizes=(1, 2, 4), settings=None, **request):
    wanted = Request(world_sizes=sizes, **request)
    return make_plan(wanted, [suite(*cases, **(settings or {}))], machine)


def rows(plan):
    return {cell.row_key[1:]: cell for cell in plan.cells if cell.purpose == "measure"}


@given(st.integers(1, 200), st.sets(st.integers(1, 12), min_size=1, max_size=3))
def test_a_batch_that_cannot_be_divided_is_answered_with_batches_that_can(batch, sizes):
    machine = Machine(0, 16)
    if all(batch % n == 0 for n in sizes):
        plan_of(machine=machine, sizes=tuple(sizes), batch_size=batch)
        return
    with pytest.raises(UsageError) as error:
        plan_of(machine=machine, sizes=tuple(sizes), batch_size=batch)
    assert f"batch of {batch} " in str(error.value)
    assert "--scaling weak" in str(error.value)
    offered = re.search(r"--batch-size (\d+)(?: or (\d+))?", str(error.value))
    for better in filter(None, offered.groups()):
        plan_of(machine=machine, sizes=tuple(sizes), batch_size=int(better))


def test_an_optional_case_is_run_if_one_of_its_rows_is_named():
    cases = (
        Case(name="plain", strategy=Plain()),
        Case(name="ddp", strategy=Ddp()),
        Case(name="ddp-static", strategy=Ddp(static_graph=True), optional=True),
    )
    assert set(rows(plan_of(*cases, only=("ddp.ddp-static.n2",)))) == {("ddp-static", 2)}
    assert ("ddp-static", 2) not in rows(plan_of(*cases))
    with pytest.raises(UsageError, match=r"Did you mean 'ddp\.ddp-static\.n2'"):
        plan_of(*cases, only=("ddp.ddp-stati.n2",))


def test_sizes_beyond_the_gpus_are_skipped_with_the_reason_and_the_way_out():
    plan = plan_of(machine=GPU_4, sizes=(1, 4, 8))
    found = rows(plan)
    assert found["ddp", 4].skip_reason is None
    reason = found["ddp", 8].skip_reason
    assert "8 GPUs" in reason
    assert "there are 4" in reason
    assert "--oversubscribe" in reason
    assert all(c.skip_reason == reason for c in plan.cells if c.world_size == 8)


def test_oversubscribed_gpus_share_over_gloo_and_are_marked():
    plan = plan_of(machine=GPU_4, sizes=(1, 4, 8), oversubscribe=True)
    found = rows(plan)
    assert (found["ddp", 4].backend, found["ddp", 4].oversubscribed) == ("nccl", False)
    assert (found["ddp", 8].backend, found["ddp", 8].oversubscribed) == ("gloo", True)
    assert found["ddp", 8].skip_reason is None
    assert any("N = 8" in notice and "oversubscribed" in notice for notice in plan.notices)


LAB = VirtualHosts(link_bit_per_s=(50_000_000,), cpus_per_rank=0.2)


def test_ranks_whose_shares_fit_are_not_oversubscribed():
    machine = Machine(num_gpus=0, num_cores=2)
    plan = plan_of(machine=machine, sizes=(1, 8, 16), batch_size=16, virtual_hosts=LAB)
    crowded = {n: cell.oversubscribed for (_, n), cell in rows(plan).items()}
    assert crowded == {1: False, 8: False, 16: True}
    assert {cell.virtual_hosts for cell in plan.cells} == {LAB}  # the plain baseline, too
    assert {cell.threads for cell in plan.cells} == {1}
    assert plan.spec.launcher == "lab"
    assert "links of 50mbit, 0.2 of a core per rank" in plan.notices[0]
    assert any("N = 16: more ranks than shares of 0.2" in notice for notice in plan.notices)


def test_virtual_hosts_have_no_gpus():
    with pytest.raises(UsageError, match="--device cuda"):
        plan_of(machine=GPU_4, device="cuda", virtual_hosts=LAB)


def test_rows_take_turns_on_cpu_where_the_launcher_can_start_them_together():
    assert plan_of().spec.shared
    assert not plan_of(shared=False).spec.shared
    assert not plan_of(machine=GPU_4).spec.shared
    world = replace(CPU_4, launcher_name="external", launcher_shares=False)
    assert not plan_of(machine=world).spec.shared
    with pytest.raises(UsageError, match="launcher external starts one row at a time"):
        plan_of(machine=world, shared=True)


RACE = {"race": Race(samples=512, evaluate_every=128), "repeats": 2, "seed": 7}


def raced(*cases, sizes=(1, 2)):
    plain = Case(name="plain", strategy=Plain(), batch_size=16)
    plan = plan_of(plain, *cases, sizes=sizes, settings=RACE)
    return [cell for cell in plan.cells if cell.purpose != "inspect"]


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Pipeline(microbatches=2), None),
        (PipeDream(), None),
        (PipeDream2BW(microbatches=2), None),
        (PipeDream2BW(microbatches=1), "give microbatches=2 or more, or PipeDream"),
        (PipeDream2BW(microbatches=3), "16 samples per pipeline cannot be split into 3"),
        (PipeDream(checkpointing=True), "with newer weights; give checkpointing=False"),
    ],
)
def test_pipelines_race_if_their_batch_can_be_cut(strategy, said):
    cells = raced(Case(name="pipe", strategy=strategy, batch_size=16), sizes=(2,))
    (reason,) = {cell.skip_reason for cell in cells if cell.case == "pipe"}
    assert reason is None if said is None else said in reason


@pytest.mark.parametrize(
    ("strategy", "said"),
    [
        (Mesh(tensor=2), "tensor group"),
        (Mesh(pipeline=2, microbatches=2), "pipeline"),
        (Mesh(), "mesh"),
        (Context(), "context parallel group"),
        (Expert(), "expert group"),
    ],
)
def test_ranks_with_a_part_of_the_model_do_not_race(strategy, said):
    suite = Suite(name="s", question="?", cases=(Case(name="plain", strategy=Plain()),), **RACE)
    assert said in unfit_for_race(suite, strategy, 16, 2)


@pytest.mark.parametrize(
    ("strategy", "asked", "said"),
    [
        (Tensor(), {"workload": "gpt-tiny"}, None),
        (Ddp(accumulate=8), {"batch_size": 8}, "4 samples per rank at N=2 cannot be split into 8"),
        (Fsdp(cpu_offload=True), {}, "these ranks are on CPU"),
        (Tensor(), {"workload": "cnn-8"}, "cnn-8 has no tensor_plan"),
        (Context(), {"workload": "mlp-tiny"}, "mlp-tiny has no context_plan"),
        (Expert(top_k=9), {"workload": "gpt-moe-tiny"}, "top_k is 9 and there are 8 experts"),
        (Expert(top_k=1), {"workload": "cnn-8"}, "cnn-8 has no experts; choose gpt-moe"),
    ],
)
def test_what_cannot_run_is_skipped_before_anything_trains(strategy, asked, said):
    cell = rows(plan_of(Case(name="one", strategy=strategy), sizes=(1, 2), **asked))["one", 2]
    assert cell.skip_reason is None if said is None else said in cell.skip_reason


@pytest.mark.parametrize(
    ("strategy", "told", "said"),
    [
        (Tensor(), {"tensor_plan": TensorPlan({"up": "columns"})}, None),
        (
            Tensor(),
            {"tensor_plan": TensorPlan({"up": "columns"}, divisors={"width": 5})},
            "mine:model: 5 (width) cannot be divided among 2 ranks; choose a size that divides 5",
        ),
        (
            Context(method="ring"),
            {"context_plan": ContextPlan(("mix",), 3, 6)},
            "mine:model: 6 (tokens) cannot be divided among 2 ranks",
        ),
        (Expert(), {"experts": [8, 5]}, "mine:model: 5 experts cannot be divided among 2 ranks"),
        (Expert(), {}, "mine:model has no experts"),
    ],
)
def test_a_users_workload_is_skipped_by_what_it_says_of_itself(strategy, told, said):
    case = Case(name="divided", strategy=strategy)
    cells = plan_of(case, sizes=(1, 2), workload="mine:model", batch_size=8).cells
    assert {cell.skip_reason for cell in cells} == {None}
    found = skip_indivisible(cells, {"mine:model": Divisible("mine:model", **told)})
    (reason,) = {c.skip_reason for c in found if c.case == "divided" and c.world_size == 2}
    assert reason is None if said is None else said in reason


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


def test_what_is_missing_is_named_with_the_command():
    assert why_missing(DeepSpeed(), lambda _: None) == (
        "deepspeed is not installed; pip install 'scalebench[deepspeed]'"
    )
    behind = Accelerate(plugin="deepspeed", stage=2)
    only_accelerate = {"accelerate": "1.15.0"}.get
    assert why_missing(behind, only_accelerate) == (
        "deepspeed and transformers are not installed; "
        "pip install 'scalebench[accelerate,deepspeed]'"
    )
    assert str(why_missing(behind, lambda _: None)).startswith(
        "accelerate, deepspeed and transformers are not installed; "
    )
    assert why_missing(DeepSpeed(), lambda _: "0.19.8") is None
    assert why_missing(Ddp(), lambda _: None) is None
    assert "; make horovod" in str(why_missing(Horovod(), lambda _: None))
