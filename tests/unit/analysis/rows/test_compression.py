"""A row of compressed training, from launches in which every number is known."""

from dataclasses import replace

import pytest

from scalebench.analysis.rows.against_uncompressed import against_uncompressed
from scalebench.analysis.rows.context import Context
from scalebench.analysis.summarise import summarise
from scalebench.records.rank import CompressionTraffic, GradientError
from scalebench.report.findings.findings import judge
from scalebench.report.table import render_table
from scalebench.report.tables.compression import sentences, tables, verdict
from scalebench.spec import Compressed
from tests.builders.predictions import the_link
from tests.builders.runs import make_inspection, make_run
from tests.builders.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)

WHOLE = 1_000_000


def launch(
    method,
    payload,
    clean=80.0,
    encode=10.0,
    decode=5.0,
    gather=True,
    repeat=0,
    losses=None,
    counted=None,
):
    """Two ranks; one bucket is encoded, communicated for 20 ms and decoded.

    The hook counts ``counted`` bytes; None: those of the traced operation.
    """
    counted = payload if counted is None else counted
    records = []
    for rank in range(2):
        operation = make_operation(50, 70, num_bytes=payload)
        marks = {
            "encode": flat([(40, 40 + encode)]) if encode else [],
            "decode": flat([(70, 70 + decode)]) if decode else [],
        }
        trace = make_trace(
            [operation] if payload else [],
            compute=[(0, 40)],
            steps=[(0, clean)],
            codec=sorted(marks["encode"] + marks["decode"]),
            **marks,
        )
        traffic = CompressionTraffic(
            num_buckets=1,
            gradient_bytes=WHOLE,
            all_reduce_bytes=0 if gather else counted,
            all_gather_bytes=counted if gather else 0,
        )
        changes = {} if losses is None else {"loss": losses}
        records.append(make_traced_record(rank, trace, clean, compression=traffic, **changes))
    strategy = Compressed(method=method)
    return make_traced_result(*records, case=method, strategy=strategy, repeat=repeat)


def inspection(result, relative_l2=0.5):
    inspected = make_inspection(result.cell)
    error = GradientError(relative_l2=relative_l2, cosine=0.9, step=2)
    first = inspected.ranks[0].model_copy(update={"gradient_error": error})
    return inspected.model_copy(update={"ranks": [first, *inspected.ranks[1:]]})


def summary_of(*launches):
    inspections = {r.cell.case: inspection(r) for r in launches}
    return summarise(make_run([*inspections.values(), *launches]))


def three(method, payload, **given):
    """Three launches that differ a little, so that there are intervals."""
    clean = given.pop("clean", 80.0)
    shifts = given.pop("shifts", (0.0, 0.4, -0.4))
    return [
        launch(method, payload, clean=clean + shift, repeat=repeat, **given)
        for repeat, shift in enumerate(shifts)
    ]


def test_bytes_times_and_break_even_by_hand():
    """N=2: float32 sends 1 MB, top-k 0.02 MB; saved 0.98 MB in 15 ms of codec: 65.3 MB/s."""
    [row] = summary_of(launch("top-k", 20_000)).rows
    told = row.compression
    assert told.payload_bytes == 20_000 and told.wire_bytes == 20_000
    assert row.payload_bytes == 20_000 and row.wire_bytes == 20_000
    assert told.payload_ratio == pytest.approx(0.02)
    assert told.nominal_ratio == pytest.approx(0.01)
    assert told.encode_s.value == pytest.approx(0.010)
    assert told.decode_s.value == pytest.approx(0.005)
    assert told.communicate_s.value == pytest.approx(0.020)
    assert told.break_even_byte_per_s.value == pytest.approx(980_000 / 0.015)
    assert told.gradient_error == 0.5 and told.gradient_cosine == 0.9


def test_torchs_own_hooks_have_no_codec_times_and_say_why():
    [row] = summary_of(launch("powersgd", 9, gather=False)).rows
    told = row.compression
    assert told.encode_s is None and told.communicate_s.value == pytest.approx(0.020)
    assert "does not mark when it encodes" in told.unavailable["break_even_byte_per_s"]
    assert "communication unseen" not in row.stamps


def test_a_trace_without_all_collectives_of_a_hook_says_so():
    """As version 0.1 recorded PowerSGD: one all-reduce of three."""
    [row] = summary_of(launch("powersgd", 9, gather=False, counted=27)).rows
    assert "communication unseen" in row.stamps
    assert row.compression.communicate_s is None
    assert "not have all collectives" in row.compression.unavailable["communicate_s"]


def test_a_row_that_communicates_nothing_is_a_bound_and_is_attributed():
    [row] = summary_of(launch("noop", 0, encode=0, decode=0)).rows
    assert any(stamp.startswith("bound") for stamp in row.stamps)
    assert row.compression.wire_bytes == 0
    assert row.comm_s is not None and row.comm_s.value == 0
    assert "bounds what compression can gain" in sentences(row, [row])[0]


def test_other_strategies_say_that_they_do_not_compress():
    [row] = summarise(make_run([make_traced_result(*launch("none", 9).ranks, case="ddp")])).rows
    assert row.compression is None
    assert row.unavailable["compression"] == "the strategy does not compress gradients"


def none(clean=80.0, **given):
    return three("none", WHOLE, clean=clean, encode=0, decode=0, gather=False, **given)


def test_one_rank_has_no_link_on_which_compression_pays():
    both = [
        make_traced_result(found.ranks[0], case=method, strategy=found.cell.strategy)
        for method, found in (("none", none()[0]), ("top-k", launch("top-k", 20_000)))
    ]
    run = make_run([*map(inspection, both), *both])
    rows = summarise(run).rows
    for link, reason in ((the_link(2), "one rank sends nothing"), ("no link", "no link")):
        context = replace(Context.of(run), link=link)
        told = against_uncompressed(rows[1], rows, context)["compression"]
        assert told.break_even_replayed_byte_per_s is None
        assert told.unavailable["break_even_replayed_byte_per_s"] == reason


def test_the_verdict_is_that_compression_does_not_pay_where_no_step_is_shorter():
    summary = summary_of(*none(), *three("top-k", 20_000, clean=95.0))
    assert "Compression does not pay on 2 CPU ranks" in verdict(summary.rows)
    assert "does not pay" in judge(summary).suites[0].ranking


def test_the_verdict_names_what_takes_a_shorter_step():
    rows = summary_of(*none(), *three("top-k", 20_000, clean=76.0)).rows
    assert verdict(rows).startswith("top-k takes a shorter step than the exact all-reduce")


def test_noise_that_hides_the_difference_is_said_to():
    rows = summary_of(*none(), *three("top-k", 20_000, clean=79, shifts=(-3.0, 2.5, 0.0))).rows
    assert "the step of top-k may be shorter or longer" in verdict(rows)


def test_the_break_even_is_held_against_the_link_that_none_saw():
    """none moved 1 MB in 20 ms: 400 Mbit/s; top-k breaks even at 523 Mbit/s."""
    summary = summary_of(
        *none(),
        *three("top-k", 20_000),
        *three("sign", 20_000, encode=10.0, decode=60.0, clean=140),
    )
    said = {f.case: " ".join((f.verdict, *f.notes)) for f in judge(summary).suites[0].findings}
    assert "top-k pays below 523 Mbit/s" in said["top-k"]
    assert "this link gives 400 Mbit/s: it pays" in said["top-k"]
    assert "this link gives 400 Mbit/s: it does not pay" in said["sign"]


def test_a_code_larger_than_float32_never_pays():
    rows = summary_of(*none(), *three("top-k", 2 * WHOLE)).rows
    row = next(row for row in rows if row.case == "top-k")
    assert "top-k never pays on 2 CPU ranks" in " ".join(sentences(row, rows))
    (table,) = tables(rows)
    assert table.lines[1][-1] == "never"


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_the_table_stands_under_the_run_and_its_sentence_under_the_table(width, ascii_only):
    summary = summary_of(*none(), *three("top-k", 20_000, clean=95.0))
    text = render_table(summary, width=width, ascii_only=ascii_only, verbose=True)
    assert all(len(line) <= width for line in text.splitlines())
    joined = " ".join(text.split())
    assert "what compression sends and costs" in joined
    assert joined.index("pays below") < joined.index("Compression does not pay on 2 CPU ranks")
    assert text.isascii() or not ascii_only
