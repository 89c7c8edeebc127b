"""Suites with recovery: which launches save, which restore, and what they need."""

from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.session.plan import Request, check_names, make_plan
from scalebench.session.plan.request import Machine
from scalebench.spec import Case, Ddp, Fsdp, Pipeline, Plain, Suite
from scalebench.spec.recovery import Recovery
from scalebench.spec.virtual_hosts import VirtualHosts

SUITE = Suite(
    name="saved",
    question="?",
    cases=(Case(name="ddp", strategy=Ddp()), Case(name="fsdp", strategy=Fsdp())),
    repeats=1,
    recovery=Recovery(),
)
HERE = Machine(num_gpus=0, num_cores=4)


def planned(suite=SUITE, **request):
    return make_plan(Request(world_sizes=(1, 2, 4), **request), [suite], HERE).cells


def test_every_row_but_the_baseline_is_saved_then_restored_then_fails():
    last = [cell for cell in planned() if cell.purpose in ("save", "restore", "fail")]
    assert [(c.purpose, c.case, c.world_size) for c in last] == [
        (purpose, case, n)
        for purpose in ("save", "restore", "fail")
        for case in ("ddp", "fsdp")
        for n in (1, 2, 4)
    ]
    assert planned()[-len(last) :] == tuple(last)


def test_only_the_cases_that_a_suite_names_fail_and_only_on_this_machine():
    suite = SUITE.model_copy(update={"recovery": Recovery(faulty_cases=("fsdp",))})
    assert {c.case for c in planned(suite) if c.purpose == "fail"} == {"fsdp"}
    quiet = SUITE.model_copy(update={"recovery": Recovery(faults=())})
    assert not [c for c in planned(quiet) if c.purpose == "fail"]
    elsewhere = Machine(num_gpus=0, num_cores=4, launcher_name="external", launcher_shares=False)
    cells = make_plan(Request(world_sizes=(1, 2)), [SUITE], elsewhere).cells
    assert not [c for c in cells if c.purpose == "fail"]
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,))
    assert [c for c in planned(SUITE, virtual_hosts=hosts) if c.purpose == "fail"]


def test_a_strategy_whose_state_cannot_be_saved_is_refused():
    suite = SUITE.model_copy(update={"cases": (Case(name="pipe", strategy=Pipeline()),)})
    with pytest.raises(UsageError, match=r"Case pipe .* of pipeline are not supported. Give .*Ddp"):
        planned(suite)


def test_a_directory_is_for_suites_that_save():
    request = Request(checkpoint_dir=Path("/fast"))
    check_names(request, [SUITE])
    plain = Suite(name="plain", question="?", cases=(Case(name="plain", strategy=Plain()),))
    with pytest.raises(UsageError, match="no given suite saves checkpoints"):
        check_names(request, [plain])
