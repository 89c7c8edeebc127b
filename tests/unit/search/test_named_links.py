"""Links by their names: the first inside a node, the second between nodes."""

import numpy as np
import pytest

from scalebench.costmodel.links.topology import LINKS
from scalebench.errors import UsageError
from scalebench.search.links import links_by_name

SIZE = 1e12  # of so much latency is nothing


def sent_s(name: str, ranks: int, near: int) -> float:
    times = links_by_name(name, 4).time(
        "send_recv", np.array([ranks]), np.array([near]), np.array([SIZE])
    )
    return float(times[0])


def test_inside_a_node_the_first_link_carries_and_across_the_second() -> None:
    inside, across = (LINKS[name].bandwidth_byte_per_s for name in ("nvlink4", "infiniband-ndr"))
    assert sent_s("nvlink4+infiniband-ndr", 2, 2) == pytest.approx(SIZE / inside, rel=1e-3)
    assert sent_s("nvlink4 + infiniband-ndr", 2, 1) == pytest.approx(SIZE / across, rel=1e-3)


def test_one_name_is_the_link_of_all() -> None:
    rate = LINKS["ethernet-10g"].bandwidth_byte_per_s
    for near in (1, 2):
        assert sent_s("ethernet-10g", 2, near) == pytest.approx(SIZE / rate, rel=1e-3)


@pytest.mark.parametrize("text", ["nvlink", "nvlink4+", "nvlink4+pcie4+pcie5"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(UsageError):
        links_by_name(text, 4)
