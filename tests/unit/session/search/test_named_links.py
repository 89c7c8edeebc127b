"""Unknown links are refused before a measurement is made for the search."""

import pytest

from scalebench.errors import UsageError
from scalebench.search.run import SearchRequest, carry_out


@pytest.mark.parametrize("named", [{"link": "nvlink"}, {"links": "no-such-file.json"}])
def test_unknown_links_are_refused_before_anything_is_measured(named):
    def calibrate(*_):
        raise AssertionError("measured")

    request = SearchRequest(world_size=2, workload="gpt-tiny", **named)
    with pytest.raises(UsageError):
        carry_out(request, calibrate, "cpu", lambda *_: None)
