"""``torch.compile`` is the default on GPUs: what a run does where it cannot work."""

import pytest
from pydantic import ValidationError

from scalebench.errors import EnvironmentUnfit
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.plan.prepare import prepare
from scalebench.spec import Case, Ddp, Fsdp, Plain, Suite, Tensor

PROBLEM = "no C compiler, no Python.h (apt install gcc; apt install python3.12-dev)"
GPU = {"name": "A GPU", "uuid": "u", "index": 0, "memory_bytes": 8e10, "peers": []}
PLAIN = Case(name="plain", strategy=Plain())


class Gpus:
    name, shares, world = "local", False, None

    def __init__(self, problem):
        self.problem, self.tried = problem, []

    def survey(self, rates=False):
        return {"torch": "2.13.0+cu130", "cuda": "13.0", "devices": [GPU, GPU], "backends": []}

    def why_not_compiled(self, device):
        self.tried.append(device)
        return self.problem


def planned(problem, *cases, **request):
    launcher = Gpus(problem)
    suite = Suite(name="s", question="?", cases=cases or (PLAIN, Case(name="ddp", strategy=Ddp())))
    return prepare(launcher, Request(world_sizes=(1, 2), **request), [suite]).plan, launcher.tried


def compiled(plan):
    return {cell.strategy.compile for cell in plan.cells if cell.skip_reason is None}


def test_rows_run_eagerly_where_nothing_can_be_compiled_and_the_plan_says_so_once():
    plan, tried = planned(PROBLEM)
    assert (compiled(plan), tried) == ({False}, ["cuda"])
    told = [notice for notice in plan.notices if PROBLEM in notice]
    assert told == [f"Ranks run eagerly: torch.compile does not work here: {PROBLEM}"]


def test_who_asks_for_compiled_rows_is_refused():
    with pytest.raises(EnvironmentUnfit, match=r"--compile: .*apt install gcc.*--no-compile"):
        planned(PROBLEM, compile=True)


def test_a_case_that_is_about_compiling_is_skipped_with_the_reason():
    own = Case(name="ddp-compiled", strategy=Ddp(compile=True))
    plan, _ = planned(PROBLEM, PLAIN, Case(name="ddp", strategy=Ddp()), own)
    reasons = {cell.case: cell.skip_reason for cell in plan.cells}
    assert PROBLEM in reasons["ddp-compiled"]
    assert reasons["ddp"] is None


V100 = Machine(num_gpus=4, num_cores=32, emulates_bfloat16="Tesla V100-SXM2-16GB")
A100 = Machine(num_gpus=4, num_cores=32)
CASES = {
    "plain": Plain(),
    "ddp": Ddp(),
    "ddp-bf16": Ddp(autocast=True),
    "tensor": Tensor(),
    "fsdp-bf16": Fsdp(param_dtype="bfloat16"),
    "fsdp-reduce-bf16": Fsdp(reduce_dtype="bfloat16"),
}
SUITE = Suite(
    name="formats",
    question="In which format?",
    cases=tuple(Case(name=name, strategy=strategy) for name, strategy in CASES.items()),
    batch_size=16,
)


def rows(machine, **asked):
    """Case → in bfloat16 autocast, skipped; at two ranks, of plain at one."""
    plan = make_plan(Request(world_sizes=(2,), compile=False, **asked), [SUITE], machine)
    cells = {cell.case: cell for cell in plan.cells if cell.purpose == "measure"}
    return plan, {n: (c.strategy.autocast, bool(c.skip_reason)) for n, c in cells.items()}


def test_the_default_is_what_the_device_computes_in():
    assert rows(A100)[1]["ddp"] == (True, False)
    plan, there = rows(V100)
    assert there["plain"] == there["ddp"] == ("float16", False)
    assert there["tensor"] == (False, False)
    assert {name for name, (_, skipped) in there.items() if skipped} == {
        *("plain-bf16", "ddp-bf16", "fsdp-bf16", "fsdp-reduce-bf16")
    }
    assert any("no bfloat16: ranks train in float16" in notice for notice in plan.notices)
    assert not rows(V100, device="cpu", autocast=True)[1]["ddp-bf16"][1]


def test_who_asks_for_it_is_told_what_to_do():
    with pytest.raises(EnvironmentUnfit, match=r"Tesla V100.*Give --dtype float16 or float32"):
        rows(V100, autocast=True)
    assert rows(V100, autocast=False)[1]["ddp"] == (False, False)
    plan, there = rows(A100, autocast="float16")
    assert there["ddp"] == ("float16", False) and there["tensor"] == (False, True)
    assert there["plain"] == ("float16", False) and there["ddp-bf16"] == (True, False)
    (why,) = {c.skip_reason for c in plan.cells if c.case == "tensor"}
    assert "needs a scaled loss, which the steps of tensor do not have; give bfloat16" in why
    with pytest.raises(ValidationError, match="which the steps of tensor do not have"):
        Tensor(autocast="float16")
    with pytest.raises(ValidationError, match="give one format"):
        Fsdp(autocast="float16", reduce_dtype="bfloat16")
