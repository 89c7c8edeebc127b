"""Whether compression pays, in a sentence and in the table."""

import pytest

from scalebench.report.tables.compression import sentences, tables, verdict
from scalebench.stats import Estimate
from tests.builders.summaries import make_compression, make_row


def rows_of(ratio=(0.8, 0.7, 0.9), **changes):
    """The exact all-reduce, and top-k whose step takes this part of its step."""
    value, low, high = ratio
    step = Estimate(value=value, low=low, high=high, n=3)
    told = make_compression("top-k", step_ratio_to_none=step, **changes)
    rows = [("none", make_compression("none")), ("top-k", told)]
    return [make_row(case, compression=one, strategy="compressed") for case, one in rows]


@pytest.mark.parametrize(
    ("ratio", "told"),
    [
        ((0.8, 0.7, 0.9), "top-k takes a shorter step than the exact all-reduce"),
        ((0.9, 0.7, 1.1), "the step of top-k may be shorter or longer"),
        ((1.2, 1.1, 1.3), "Compression does not pay on 2 CPU ranks"),
    ],
)
def test_compression_pays_where_the_interval_of_its_step_says_so(ratio, told):
    assert told in verdict(rows_of(ratio))


def test_a_code_larger_than_float32_never_pays():
    rows = rows_of(break_even_byte_per_s=Estimate(value=0.0, n=1))
    assert "top-k never pays on 2 CPU ranks" in " ".join(sentences(rows[1], rows))
    (table,) = tables(rows)
    assert table.lines[1][-1] == "never"
