import re

import pytest
from pydantic import ValidationError

from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.report import render_table
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.storing.finish import Run
from scalebench.spec import Case, Collectives, Ddp, Plain, Suite
from tests.builders.calibrated import line, point
from tests.builders.runs import make_run

CPU_4 = Machine(num_gpus=0, num_cores=4)
LINKS = Suite(name="links", question="What do links cost?", collectives=Collectives())
TRAINING = Suite(
    name="ddp",
    question="How well does it scale?",
    cases=(Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())),
)


def planned(*suites, **request):
    return make_plan(Request(**{"world_sizes": (2, 4)} | request), suites, CPU_4)


def test_beside_a_suite_that_trains_n_1_is_added_and_trained():
    plan = planned(LINKS, TRAINING)
    assert plan.spec.world_sizes == (1, 2, 4)
    assert {cell.suite for cell in plan.cells} == {"ddp"}


def test_k_chooses_operations():
    chosen = planned(LINKS, selection="reduce and not all").spec.suites[0].collectives
    assert chosen.operations == ("reduce_scatter", "reduce")
    with pytest.raises(UsageError, match=r"no operation of suite links\. Operations: all_"):
        planned(LINKS, selection="nonsense")


def test_quick_measures_less():
    quick = planned(LINKS, quick=True).spec.suites[0].collectives
    assert quick.largest("cpu") < LINKS.collectives.largest("cpu")
    assert quick.repeats < LINKS.collectives.repeats


@pytest.mark.parametrize(
    ("request_", "complaint"),
    [
        ({"world_sizes": (1,)}, "one rank sends nothing. Give --gpus with 2 ranks or more."),
        (
            {"link_profile": "link.json"},
            "measures the links itself, and --link-profile also gives them.",
        ),
    ],
)
def test_what_cannot_be_timed_is_refused(request_, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        planned(LINKS, **request_)


def test_a_suite_asks_for_something():
    with pytest.raises(ValidationError, match="give cases to train, or collectives to time"):
        Suite(name="empty", question="What?")


@pytest.mark.parametrize("wrong", [{"max_bytes": 8}, {"repeats": 2}, {"operations": ("sum",)}])
def test_collectives_that_cannot_be_fitted_or_do_not_exist(wrong):
    with pytest.raises(ValidationError):
        Collectives(**wrong)


def timed_run(points, **stored):
    run = make_run([])
    spec = run.info.spec.model_copy(update={"suites": (LINKS,)})
    run.info = run.info.model_copy(update={"spec": spec})
    if points:
        told = {"created": "2024-05-01", "version": "0", "device": "cpu", "backend": "gloo"}
        run.link = profile_of(points, (), **told)
    for name, value in stored.items():
        setattr(run, name, value)
    return Run(run.paths, summarise(run))


def test_what_was_timed_is_told_and_the_run_is_good():
    run = timed_run(line())
    assert run.exit_code is ExitCode.OK
    assert run.summary.collectives.num_points == len(line())
    assert [fit["op"] for fit in run.summary.collectives.fits] == ["all_reduce"]
    text = render_table(run.summary)
    assert "every result verified: 0 wrong elements" in text
    assert "fits of float32, 95 % intervals" in text
    assert "link" not in run.summary.model_dump()


def test_a_wrong_element_fails_the_run():
    run = timed_run([*line(), point(64, 1e-5, wrong=3)])
    assert run.exit_code is ExitCode.CELLS_FAILED
    assert "failed: 3 elements of results are wrong" in render_table(run.summary)


def test_collectives_that_could_not_be_timed_fail_the_run():
    run = timed_run([], link_unavailable="calibrating the links failed: rank 1 died")
    assert run.exit_code is ExitCode.CELLS_FAILED
    assert run.summary.collectives.num_points == 0
    assert "failed: calibrating the links failed: rank 1 died" in render_table(run.summary)
