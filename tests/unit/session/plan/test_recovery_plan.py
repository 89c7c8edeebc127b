"""Suites with recovery: which launches save, which restore, and what they need."""

from pathlib import Path

import pytest

from scalebench.errors import UsageError
from scalebench.session.plan import Request, check_names, make_plan
from scalebench.session.plan.request import Machine
from scalebench.spec import Case, Ddp, Fsdp, Pipeline, Plain, Suite
from scalebench.spec.recovery import Recovery

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
