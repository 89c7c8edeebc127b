import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.cli.text_tables import render_plan
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.session.plan import Machine, Request, check_names, make_plan, max_batch
from scalebench.session.plan.cells import skip_indivisible, unfit_for_race
from scalebench.session.plan.max_batch import forecast
from scalebench.session.plan.prepare import prepare, why_missing
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
    Script,
    SharedLaunch,
    Suite,
    Tensor,
)
from scalebench.spec.recovery import Race, Recovery
from scalebench.spec.script import ScriptTarget
from scalebench.spec.workload import ContextPlan, Divisible, TensorPlan
from scalebench.spec.world import VirtualHosts
from tests.builders.runs import make_cell, make_result
from tests.examples import cases

CPU_4, GPU_4 = Machine(num_gpus=0, num_cores=4), Machine(num_gpus=4, num_cores=32)
CROWDED = Machine(num_gpus=4, num_cores=7)
"""Three cores for each of two ranks."""
PLAIN, DDP = Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())


def suite(*cases, name="ddp", **settings):
    return Suite(name=name, question="How well?", cases=cases or (PLAIN, DDP), **settings)


def plan_of(*cases, machine=CPU_4, sizes=(1, 2, 4), settings=None, **request):
    wanted = Request(world_sizes=sizes, **request)
    return make_plan(wanted, [suite(*cases, **(settings or {}))], machine)


def rows(plan):
    return {cell.row_key[1:]: cell for cell in plan.cells if cell.purpose == "measure"}


def agrees(reason, said):
    return reason is None if said is None else said in reason


@given(st.integers(1, 200), st.sets(st.integers(1, 12), min_size=1, max_size=3))
def test_a_batch_that_cannot_be_divided_is_answered_with_batches_that_can(batch, sizes):
    there = {"machine": Machine(0, 16), "sizes": tuple(sizes)}
    if all(batch % n == 0 for n in sizes):
        plan_of(**there, batch_size=batch)
        return
    with pytest.raises(UsageError) as error:
        plan_of(**there, batch_size=batch)
    assert f"batch of {batch} " in str(error.value) and "--scaling weak" in str(error.value)
    offered = re.search(r"--batch-size (\d+)(?: or (\d+))?", str(error.value))
    for better in filter(None, offered.groups()):
        plan_of(**there, batch_size=int(better))


def test_an_optional_case_is_run_if_one_of_its_rows_is_named():
    static = Case(name="ddp-static", strategy=Ddp(static_graph=True), optional=True)
    cases = (PLAIN, DDP, static)
    assert set(rows(plan_of(*cases, only=("ddp.ddp-static.n2",)))) == {("ddp-static", 2)}
    assert ("ddp-static", 2) not in rows(plan_of(*cases))
    with pytest.raises(UsageError, match=r"Did you mean 'ddp\.ddp-static\.n2'"):
        plan_of(*cases, only=("ddp.ddp-stati.n2",))


def test_sizes_beyond_the_gpus_are_skipped_or_share_over_gloo_and_are_marked():
    plan = plan_of(machine=GPU_4, sizes=(1, 4, 8))
    reason = rows(plan)["ddp", 8].skip_reason
    assert all(word in reason for word in ("8 GPUs", "there are 4", "--oversubscribe"))
    assert {c.skip_reason for c in plan.cells if c.world_size == 8} == {reason}
    assert rows(plan)["ddp", 4].skip_reason is None
    plan = plan_of(machine=GPU_4, sizes=(1, 4, 8), oversubscribe=True)
    four, eight = (rows(plan)["ddp", n] for n in (4, 8))
    assert (four.backend, four.oversubscribed) == ("nccl", False)
    assert (eight.backend, eight.oversubscribed, eight.skip_reason) == ("gloo", True, None)
    assert any("N = 8" in notice and "oversubscribed" in notice for notice in plan.notices)


LAB = VirtualHosts(link_bit_per_s=(50_000_000,), cpus_per_rank=0.2)


def test_virtual_hosts_have_shares_of_cores_and_no_gpus_and_are_always_pinned():
    lab = {"machine": Machine(num_gpus=0, num_cores=2), "virtual_hosts": LAB}
    plan = plan_of(sizes=(1, 8, 16), batch_size=16, **lab)
    crowded = {n: cell.oversubscribed for (_, n), cell in rows(plan).items()}
    assert crowded == {1: False, 8: False, 16: True}
    assert {cell.virtual_hosts for cell in plan.cells} == {LAB}  # the plain baseline, too
    assert {cell.threads for cell in plan.cells} == {1}
    assert plan.spec.launcher == "lab"
    assert "links of 50mbit, 0.2 of a core per rank" in plan.notices[0]
    assert any("N = 16: more ranks than shares of 0.2" in notice for notice in plan.notices)
    asked = Request(world_sizes=(1, 2), virtual_hosts=LAB)
    assert make_plan(asked, [SCRIPT], CPU_4).spec.pinned


def test_rows_take_turns_on_cpu_where_the_launcher_can_start_them_together():
    assert plan_of().spec.shared
    assert not plan_of(shared=False).spec.shared
    assert not plan_of(machine=GPU_4).spec.shared
    world = replace(CPU_4, launcher_name="external", launcher_shares=False)
    assert not plan_of(machine=world).spec.shared
    with pytest.raises(UsageError, match="launcher external starts one row at a time"):
        plan_of(machine=world, shared=True)


RACE = {"race": Race(samples=512, evaluate_every=128), "repeats": 2, "seed": 7}


@cases(
    "strategy, said",
    (Pipeline(microbatches=2), None),
    (PipeDream(), None),
    (PipeDream2BW(microbatches=2), None),
    (PipeDream2BW(microbatches=1), "give microbatches=2 or more, or PipeDream"),
    (PipeDream2BW(microbatches=3), "16 samples per pipeline cannot be split into 3"),
    (PipeDream(checkpointing=True), "with newer weights; give checkpointing=False"),
)
def test_pipelines_race_if_their_batch_can_be_cut(strategy, said):
    plain, x = (Case(name=s.kind, strategy=s, batch_size=16) for s in (Plain(), strategy))
    cells = plan_of(plain, x, sizes=(2,), settings=RACE).cells
    (reason,) = {c.skip_reason for c in cells if c.case == x.name and c.purpose != "inspect"}
    assert agrees(reason, said)


@cases(
    "strategy, said",
    (Mesh(tensor=2), "tensor group"),
    (Mesh(pipeline=2, microbatches=2), "pipeline"),
    (Mesh(), "mesh"),
    (Context(), "context parallel group"),
    (Expert(), "expert group"),
)
def test_ranks_with_a_part_of_the_model_do_not_race(strategy, said):
    assert said in unfit_for_race(suite(PLAIN, **RACE), strategy, 16, 2)


@cases(
    "strategy, asked, said",
    (Tensor(), {"workload": "gpt-tiny"}, None),
    (Ddp(accumulate=8), {"batch_size": 8}, "4 samples per rank at N=2 cannot be split into 8"),
    (Fsdp(cpu_offload=True), {}, "these ranks are on CPU"),
    (Tensor(), {"workload": "cnn-8"}, "cnn-8 has no tensor_plan"),
    (Context(), {"workload": "mlp-tiny"}, "mlp-tiny has no context_plan"),
    (Expert(top_k=9), {"workload": "gpt-moe-tiny"}, "top_k is 9 and there are 8 experts"),
    (Expert(top_k=1), {"workload": "cnn-8"}, "cnn-8 has no experts; choose gpt-moe"),
)
def test_what_cannot_run_is_skipped_before_anything_trains(strategy, asked, said):
    cell = rows(plan_of(Case(name="one", strategy=strategy), sizes=(1, 2), **asked))["one", 2]
    assert agrees(cell.skip_reason, said)


FIVE, SIX = TensorPlan({"up": "columns"}, divisors={"width": 5}), ContextPlan(("mix",), 3, 6)


@cases(
    "strategy, told, said",
    (Tensor(), {"tensor_plan": TensorPlan({"up": "columns"})}, None),
    (Tensor(), {"tensor_plan": FIVE}, "5 (width) cannot be divided among 2 ranks; choose"),
    (Context(method="ring"), {"context_plan": SIX}, "6 (tokens) cannot be divided among 2 ranks"),
    (Expert(), {"experts": [8, 5]}, "mine:model: 5 experts cannot be divided among 2 ranks"),
    (Expert(), {}, "mine:model has no experts"),
)
def test_a_users_workload_is_skipped_by_what_it_says_of_itself(strategy, told, said):
    case = Case(name="divided", strategy=strategy)
    cells = plan_of(case, sizes=(1, 2), workload="mine:model", batch_size=8).cells
    assert {cell.skip_reason for cell in cells} == {None}
    found = skip_indivisible(cells, {"mine:model": Divisible("mine:model", **told)})
    (reason,) = {c.skip_reason for c in found if c.case == "divided" and c.world_size == 2}
    assert agrees(reason, said)


def test_how_long_a_race_takes_is_not_guessed_and_its_rows_take_no_turns():
    plain = PLAIN.model_copy(update={"batch_size": 16})
    plan = plan_of(plain, sizes=(1,), settings={"race": RACE["race"], "workload": "mlp"})
    text = render_plan(forecast(plan, {}), plan)
    assert forecast(plan, {}).wall_s is None
    assert "the time depends on how long 512 samples of a race take to train on\n" in text
    assert "script" not in text and "take turns" not in text


BEHIND = Accelerate(plugin="deepspeed", stage=2)


@cases(
    "strategy, installed, said",
    (DeepSpeed(), (), "deepspeed is not installed; pip install 'scalebench[deepspeed]'"),
    (
        BEHIND,
        ("accelerate",),
        "deepspeed and transformers are not installed; "
        "pip install 'scalebench[accelerate,deepspeed]'",
    ),
    (BEHIND, (), "accelerate, deepspeed and transformers are not installed; "),
    (DeepSpeed(), ("deepspeed",), None),
    (Ddp(), (), None),
    (Horovod(), (), "; make horovod"),
)
def test_what_is_missing_is_named_with_the_command(strategy, installed, said):
    assert agrees(why_missing(strategy, dict.fromkeys(installed, "1.15").get), said)


SCRIPT = Suite(
    name="train",
    question="How well does it scale?",
    cases=(Case(name="script", strategy=Script()),),
    scaling="weak",
    batch_size=1,
    script=ScriptTarget(name="train", program="train.py"),
)


@cases(
    "measured, machine, asked, pinned",
    (suite(batch_size=16), CPU_4, None, True),
    (suite(batch_size=16), GPU_4, None, True),
    (SCRIPT, CPU_4, None, False),
    (SCRIPT, GPU_4, None, False),
    (suite(batch_size=16), CROWDED, None, False),
    (suite(batch_size=16), CROWDED, True, True),
)
def test_who_is_pinned(measured, machine, asked, pinned):
    """Ranks of suites, and not those of scripts, unless the user says so."""
    plan = make_plan(Request(world_sizes=(1, 2), pinned=asked), [measured], machine)
    assert plan.spec.pinned is pinned
    assert {cell.pinned for cell in plan.cells} == {pinned}
    assert SharedLaunch.of(plan.cells[:2]).pinned is pinned


PROBLEM = "no C compiler, no Python.h (apt install gcc; apt install python3.12-dev)"
GPU = {"name": "A GPU", "uuid": "u", "index": 0, "memory_bytes": 8e10, "peers": []}


class Gpus:
    """Stands for a launcher on a machine with GPUs, on which nothing can be compiled."""

    name, shares, world = "local", False, None

    def __init__(self):
        self.tried = []

    def survey(self, rates=False):
        return {"torch": "2.13.0+cu130", "cuda": "13.0", "devices": [GPU, GPU], "backends": []}

    def why_not_compiled(self, device):
        self.tried.append(device)
        return PROBLEM


def test_where_nothing_can_be_compiled_rows_run_eagerly_unless_compiled_ones_are_asked_for():
    launcher, asked = Gpus(), Request(world_sizes=(1, 2))
    own = Case(name="ddp-compiled", strategy=Ddp(compile=True))
    plan = prepare(launcher, asked, [suite(PLAIN, DDP, own)]).plan
    reasons = {cell.case: cell.skip_reason for cell in plan.cells}
    assert PROBLEM in reasons["ddp-compiled"] and reasons["ddp"] is None
    compiled = {cell.strategy.compile for cell in plan.cells if cell.skip_reason is None}
    assert (compiled, launcher.tried) == ({False}, ["cuda"])
    told = [notice for notice in plan.notices if PROBLEM in notice]
    assert told == [f"Ranks run eagerly: torch.compile does not work here: {PROBLEM}"]
    with pytest.raises(EnvironmentUnfit, match=r"--compile: .*apt install gcc.*--no-compile"):
        prepare(launcher, replace(asked, compile=True), [suite()])


V100 = Machine(num_gpus=4, num_cores=32, emulates_bfloat16="Tesla V100-SXM2-16GB")
FORMATS = {
    "plain": Plain(),
    "ddp": Ddp(),
    "ddp-bf16": Ddp(autocast=True),
    "tensor": Tensor(),
    "fsdp-bf16": Fsdp(param_dtype="bfloat16"),
    "fsdp-reduce-bf16": Fsdp(reduce_dtype="bfloat16"),
}


def in_formats(machine, **asked):
    """Case → in bfloat16 autocast, skipped; at two ranks, of plain at one."""
    cases = (Case(name=name, strategy=strategy) for name, strategy in FORMATS.items())
    asked |= {"sizes": (2,), "compile": False, "settings": {"batch_size": 16}}
    plan = plan_of(*cases, machine=machine, **asked)
    found = rows(plan).items()
    return plan, {name: (c.strategy.autocast, bool(c.skip_reason)) for (name, _), c in found}


def test_the_default_is_what_the_device_computes_in():
    assert in_formats(GPU_4)[1]["ddp"] == (True, False)
    plan, there = in_formats(V100)
    assert there["plain"] == there["ddp"] == ("float16", False)
    assert there["tensor"] == (False, False)
    assert {name for name, (_, skipped) in there.items() if skipped} == {
        *("plain-bf16", "ddp-bf16", "fsdp-bf16", "fsdp-reduce-bf16")
    }
    assert any("no bfloat16: ranks train in float16" in notice for notice in plan.notices)
    assert not in_formats(V100, device="cpu", autocast=True)[1]["ddp-bf16"][1]


def test_who_asks_for_it_is_told_what_to_do():
    with pytest.raises(EnvironmentUnfit, match=r"Tesla V100.*Give --dtype float16 or float32"):
        in_formats(V100, autocast=True)
    assert in_formats(V100, autocast=False)[1]["ddp"] == (False, False)
    plan, there = in_formats(GPU_4, autocast="float16")
    assert there["ddp"] == ("float16", False) and there["tensor"] == (False, True)
    assert there["plain"] == ("float16", False) and there["ddp-bf16"] == (True, False)
    (why,) = {c.skip_reason for c in plan.cells if c.case == "tensor"}
    assert "needs a scaled loss, which the steps of tensor do not have; give bfloat16" in why
    with pytest.raises(ValidationError, match="which the steps of tensor do not have"):
        Tensor(autocast="float16")
    with pytest.raises(ValidationError, match="give one format"):
        Fsdp(autocast="float16", reduce_dtype="bfloat16")


def test_a_strategy_whose_state_cannot_be_saved_is_refused():
    pipe = Case(name="pipe", strategy=Pipeline())
    with pytest.raises(UsageError, match=r"Case pipe .* of pipeline are not supported. Give .*Ddp"):
        plan_of(pipe, settings={"repeats": 1, "recovery": Recovery()})


def test_a_directory_is_for_suites_that_save():
    request = Request(checkpoint_dir=Path("/fast"))
    check_names(request, [suite(DDP, repeats=1, recovery=Recovery())])
    with pytest.raises(UsageError, match="no given suite saves checkpoints"):
        check_names(request, [suite(PLAIN)])


@given(edge=st.integers(0, 10**6), first=st.integers(1, 10**4))
def test_the_largest_batch_is_found_to_a_sixteenth_with_few_probes(edge, first):
    probes = []

    def fits(batch):
        probes.append(batch)
        return batch <= edge

    found = max_batch.largest_fitting(fits, first)
    assert found.fits <= edge < found.too_large
    assert found.too_large - found.fits <= max(1, found.fits // max_batch.PRECISION)
    assert len(probes) == len(set(probes)) <= 2 + max(edge, first).bit_length() + 14
    assert max(probes) <= max(first, 2 * edge)


def test_the_largest_batch_of_a_gpu_needs_no_limit():
    assert max_batch.for_max_batch(Request(), "cuda").scaling == "weak"


def test_more_ranks_that_hold_no_less_are_not_tried():
    two, four = (make_cell("ddp", n, rank_batch=8) for n in (2, 4))
    result = make_result(two, status="oom", reason="rank 0: too much")
    reason = max_batch.why_too_large(four, [result])
    assert "N=2 ran out of memory" in reason and "--keep-going" in reason
