"""Calibration: what is planned, what becomes of points, how it is shown."""

import re

import pytest

from scalebench.analysis.summarise import summarise
from scalebench.costmodel.links.profile import LinkProfile, profile_of
from scalebench.errors import ExitCode, UsageError
from scalebench.report import render_table
from scalebench.session.calibration.sweeps import Sweeps, cut_short, measured_profile
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.session.storing.finish import Run
from scalebench.spec import Collectives, Suite
from tests.builders.links.calibrated import line, point
from tests.builders.runs import make_run
from tests.examples import cases


def test_what_the_time_limit_left_out_is_told_for_each_number_of_ranks():
    sizes = tuple(1 << n for n in (16, 18, 20, 22))
    sweeps = Sweeps(
        (2, 4),
        ("all_reduce", "all_gather"),
        ("float32",),
        1 << 22,
        sizes={"all_reduce": sizes, "all_gather": sizes},
        in_place=False,
        time_limit_s=30.0,
    )
    points = [
        point(size, 0.01, operation=op, num_ranks=n)
        for op in ("all_reduce", "all_gather")
        for n in (2, 4)
        for size in sizes
    ]
    assert cut_short(points, sweeps, "cpu") == ()
    slow = [p for p in points if (p.op, p.world_size) != ("all_gather", 4) or p.size_bytes < 1e6]
    (told,) = cut_short(slow, sweeps, "cpu")
    assert "N=4" in told and "30 s" in told and "all_gather up to 262 kB of 4.19 MB" in told
    assert "all_reduce" not in told
    profile = measured_profile(slow, sweeps, "cpu", 2, {})
    assert profile.cut_short == (told,)
    assert LinkProfile.model_validate_json(profile.model_dump_json()).cut_short == (told,)


CPU_4 = Machine(num_gpus=0, num_cores=4)
LINKS = Suite(name="links", question="What do links cost?", collectives=Collectives())


def planned(*suites, **request):
    return make_plan(Request(**{"world_sizes": (2, 4)} | request), suites, CPU_4)


def test_k_chooses_operations():
    chosen = planned(LINKS, selection="reduce and not all").spec.suites[0].collectives
    assert chosen.operations == ("reduce_scatter", "reduce")
    with pytest.raises(UsageError, match=r"no operation of suite links\. Operations: all_"):
        planned(LINKS, selection="nonsense")


@cases(
    "request_, complaint",
    ({"world_sizes": (1,)}, "one rank sends nothing. Give --gpus with 2 ranks or more."),
    (
        {"link_profile": "link.json"},
        "measures the links itself, and --link-profile also gives them.",
    ),
)
def test_what_cannot_be_timed_is_refused(request_, complaint):
    with pytest.raises(UsageError, match=re.escape(complaint)):
        planned(LINKS, **request_)


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


def test_a_wrong_element_fails_the_run():
    run = timed_run([*line(), point(64, 1e-5, wrong=3)])
    assert run.exit_code is ExitCode.CELLS_FAILED
    assert "failed: 3 elements of results are wrong" in render_table(run.summary)


def test_collectives_that_could_not_be_timed_fail_the_run():
    run = timed_run([], link_unavailable="calibrating the links failed: rank 1 died")
    assert run.exit_code is ExitCode.CELLS_FAILED
    assert run.summary.collectives.num_points == 0
    assert "failed: calibrating the links failed: rank 1 died" in render_table(run.summary)
