"""Rounds that another process asks for: which rows they have, and when there are none."""

import pytest

from scalebench.session.launches.precision import why_separate
from scalebench.spec.race import Race
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.runs import make_cell, make_info

ROWS = [make_cell("plain", 1), make_cell("ddp", 1), make_cell("ddp", 2)]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        (ROWS, None),
        ([make_cell("ddp", 2, purpose="save"), *ROWS], "checkpoints"),
        ([make_cell("ddp", 2, purpose="fail"), *ROWS], "failures"),
        ([], "only collectives"),
        ([make_cell("ddp", 2, race=Race(samples=64, evaluate_every=32))], "another seed"),
    ],
)
def test_why_a_run_makes_no_further_round(cells, says):
    info = make_info(cells)
    found = why_separate(info)
    assert found is None if says is None else says in str(found)
    hosts = VirtualHosts(link_bit_per_s=(100_000_000,))
    spec = info.spec.model_copy(update={"virtual_hosts": hosts})
    assert "virtual hosts" in str(why_separate(info.model_copy(update={"spec": spec})))
