"""Which ranks are pinned: those of suites, and not those of scripts, unless the user says so."""

import pytest

from scalebench.errors import UsageError
from scalebench.session.plan import Machine, Request, make_plan
from scalebench.spec import Case, Ddp, Plain, Script, SharedLaunch, Suite
from scalebench.spec.script import ScriptTarget
from scalebench.spec.virtual_hosts import VirtualHosts

CPU_4 = Machine(num_gpus=0, num_cores=4)
GPU_4 = Machine(num_gpus=4, num_cores=32)
CROWDED = Machine(num_gpus=4, num_cores=7)
"""Three cores for each of two ranks."""
SUITE = Suite(
    name="ddp",
    question="How well does it scale?",
    cases=(Case(name="plain", strategy=Plain()), Case(name="ddp", strategy=Ddp())),
    batch_size=16,
)
SCRIPT = Suite(
    name="train",
    question="How well does it scale?",
    cases=(Case(name="script", strategy=Script()),),
    scaling="weak",
    batch_size=1,
    script=ScriptTarget(name="train", program="train.py"),
)


@pytest.mark.parametrize(
    ("suite", "machine", "asked", "pinned"),
    [
        (SUITE, CPU_4, None, True),
        (SUITE, GPU_4, None, True),
        (SCRIPT, CPU_4, None, False),
        (SCRIPT, GPU_4, None, False),
        (SUITE, CROWDED, None, False),
        (SUITE, CROWDED, True, True),
    ],
)
def test_who_is_pinned(suite, machine, asked, pinned):
    plan = make_plan(Request(world_sizes=(1, 2), pinned=asked), [suite], machine)
    assert plan.spec.pinned is pinned
    assert {cell.pinned for cell in plan.cells} == {pinned}
    assert SharedLaunch.of(plan.cells[:2]).pinned is pinned


def test_virtual_hosts_are_always_pinned():
    hosts = VirtualHosts(link_bit_per_s=(50_000_000,))
    asked = Request(world_sizes=(1, 2), virtual_hosts=hosts, pinned=False)
    with pytest.raises(UsageError, match=r"--unpinned .* or give --pinned\."):
        make_plan(asked, [SUITE], CPU_4)
    asked = Request(world_sizes=(1, 2), virtual_hosts=hosts)
    assert make_plan(asked, [SCRIPT], CPU_4).spec.pinned
