"""From the plan of a GPU to joules per sample: the clean window is long enough to have them."""

from types import SimpleNamespace

import pytest

from scalebench.analysis.energy import energy_per_sample
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Plain, Suite
from scalebench.worker.measure import loop
from tests.builders.loops import Fake, level, run_loop
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.watched import BEGIN_NS, A, make_twin, sample

START_S = 0.3
SECONDS = 60.0
WATTS = 300
"""Of the twin's first device."""


def measured_on_twin(step_s, **request):
    """Plan and measure on a GPU whose clock and energy counter are a recorded twin's."""
    suite = Suite(name="x", question="?", cases=(Case(name="plain", strategy=Plain()),))
    plan = make_plan(Request(world_sizes=(1,), **request), [suite], Machine(1, 8))
    cell = make_cell("plain", 1, device="cuda", steps=plan.cells[-1].steps)
    fake = Fake(level(step_s))
    fake.now = START_S
    watch = SimpleNamespace(
        monotonic_ns=lambda: BEGIN_NS + round(fake.now * 1e9), process_time=lambda: fake.now
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "time", watch)
        seen = run_loop(fake, cell)
    assert fake.now < SECONDS
    rank = make_record(
        step_s=seen.step_s,
        loss=seen.loss,
        blocks=seen.blocks,
        facts={"device_uuid": A.removeprefix("GPU-")},
    )
    node, _ = sample(make_twin(), [A], until_s=fake.now + 0.5)
    return make_result(cell, ranks=[rank], node=node), fake


@pytest.mark.parametrize("step_s", [0.003, 0.03, 0.15, 0.4])
def test_a_run_with_the_defaults_has_an_energy_number(step_s):
    result, _ = measured_on_twin(step_s)
    energy = energy_per_sample(result)
    assert energy.reason is None
    assert energy.j_per_sample == pytest.approx(WATTS * step_s / 32, rel=0.01)


@pytest.mark.parametrize("request_", [{"quick": True}, {"steps": 20}])
def test_a_run_that_is_to_be_short_has_none_and_says_why(request_):
    result, fake = measured_on_twin(0.03, **request_)
    energy = energy_per_sample(result)
    assert energy.j_per_sample is None
    assert "energy needs 2 s" in energy.reason
    assert fake.now - START_S < 2.0
