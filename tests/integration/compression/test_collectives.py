"""All-reduces over real ranks: sums, bytes on the wire, and the same bits everywhere."""

import pytest

from tests.examples import cases
from tests.integration.programs import reports_of
from tests.tools.collective_variants import VARIANTS

WORLD_SIZES = (1, 2, 3, 4, 5, 8)
every_world_size = cases("world_size", *WORLD_SIZES)


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of("compression.collective_ranks", tmp_path_factory.mktemp("sums"), WORLD_SIZES)


@every_world_size
@cases("variant", *VARIANTS)
def test_sums_bytes_and_bits(reports, world_size, variant):
    """Sums within the rounding of their dtype, bytes as the law says, every rank the same bits."""
    by_rank = [
        [result for result in report["sums"] if result["variant"] == variant]
        for report in reports[world_size]
    ]
    assert len(by_rank[0]) >= 12
    for results in zip(*by_rank, strict=True):
        for rank, result in enumerate(results):
            assert not result["wrong"], f"rank {rank}: {result}"
        assert len({result["digest"] for result in results}) == 1, results[0]["case"]


@every_world_size
def test_what_cannot_be_summed_is_refused_in_one_line(reports, world_size):
    for report in reports[world_size]:
        given = report["refusals"]
        assert "bool" in given["bool"]
        assert "segment_bytes is 0" in given["segment"]
        assert "torch.int64" in given["accumulate"]
        assert "Did you mean 'binary'?" in given["shape"]
        assert f"server is {world_size}; give" in given["server"]
        assert f"{world_size + 1} hosts for {world_size} ranks" in given["hosts"]
        assert not any("\n" in text for text in given.values())


@cases("world_size", *[n for n in WORLD_SIZES if n > 2])
def test_a_group_of_some_ranks_sums_among_these(reports, world_size):
    first, *between, last = (report["group"] for report in reports[world_size])
    assert first == last == "summed"
    assert all("not a rank of the given group" in text for text in between)
