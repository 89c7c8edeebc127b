"""Old runs stored the largest batches as notices only: what can be read back from those."""

from scalebench.records.largest_batch import LargestBatch, from_notices
from tests.builders.runs import make_cell

NOTICE = "ddp, N = 2: 48 samples per rank fit, 51 do not"


def of_suite(suite):
    return make_cell("ddp", 2).model_copy(update={"suite": suite})


def test_an_old_notice_is_read_where_its_suite_is_known():
    batch = LargestBatch(suite="a", case="ddp", world_size=2, fits=48, too_large=51)
    assert batch.notice() == NOTICE
    assert from_notices(["CPU ranks over gloo", NOTICE], [of_suite("a")] * 2) == [batch]


def test_an_old_notice_of_two_suites_is_nobodys():
    assert from_notices([NOTICE], [of_suite("a"), of_suite("b")]) == []
    assert from_notices([NOTICE], []) == []


def test_a_notice_with_numbers_that_no_run_has_is_left_out():
    """Files that others wrote have no checksum, and any text in them."""
    for numbers in (
        "20 samples per rank fit, 0 do not",
        "9" * 5000 + " samples per rank fit, 1 do not",
    ):
        assert from_notices([NOTICE.partition(": ")[0] + ": " + numbers], [of_suite("a")]) == []
