"""GPUs without bfloat16 train in float32: nobody is shown the pace of an emulation."""

import pytest

from scalebench.errors import EnvironmentUnfit
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Ddp, Fsdp, Plain, Suite

V100 = Machine(num_gpus=4, num_cores=32, emulates_bfloat16="Tesla V100-SXM2-16GB")
A100 = Machine(num_gpus=4, num_cores=32)
CASES = {
    "plain": Plain(),
    "ddp": Ddp(),
    "ddp-bf16": Ddp(autocast=True),
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
    assert there["plain"] == there["ddp"] == (False, False)
    assert {name for name, (_, skipped) in there.items() if skipped} == {
        *("plain-bf16", "ddp-bf16", "fsdp-bf16", "fsdp-reduce-bf16")
    }
    assert "Tesla V100-SXM2-16GB has no bfloat16: ranks train in float32" in plan.notices
    assert not rows(V100, device="cpu", autocast=True)[1]["ddp-bf16"][1]


def test_who_asks_for_it_is_told_what_to_do():
    with pytest.raises(EnvironmentUnfit, match=r"Tesla V100.*Give --dtype float32"):
        rows(V100, autocast=True)
    assert rows(V100, autocast=False)[1]["ddp"] == (False, False)
