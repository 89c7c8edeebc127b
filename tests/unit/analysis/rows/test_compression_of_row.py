"""What compressed training sent and cost, field by field: three ranks, two launches."""

import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.rows.against_uncompressed import against_uncompressed
from scalebench.analysis.rows.break_even import replayed_break_even
from scalebench.analysis.rows.compression import (
    BOUND,
    CODEC_TIMES,
    NOT_ALL_SEEN,
    NOT_SEEN,
    NOT_TRACED,
    NOTHING_ENCODED,
    OF_TORCH,
    ONE_RANK,
    TIMES,
    UNSEEN,
    compression_of_row,
    decoding_s,
    is_unmarked,
)
from scalebench.analysis.rows.launches import Launches
from scalebench.costmodel.break_even import break_even_byte_per_s
from scalebench.records.rank import CompressionTraffic, GradientError
from scalebench.spec import Compressed
from scalebench.stats import estimate_over_launches, estimate_signed
from tests.builders.runs import make_cell, make_failed, make_inspection, make_record, make_result
from tests.builders.summaries import make_compression, make_row
from tests.builders.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
)
from tests.unit.analysis.rows.test_break_even import N2, exact, smaller
from tests.unit.analysis.rows.test_prediction import the_link

TRAFFIC = CompressionTraffic(
    num_buckets=2, gradient_bytes=9000, all_reduce_bytes=300, all_gather_bytes=500
)


def traced(rank, num=3, encode=4.0, decode=2.0, seen=800, **changes):
    """Of 80 ms: encoded from 30 ms on, reduced from 40 (rank 2: 44) to 60, then decoded."""
    begin = 44 if rank == 2 else 40
    gathered = {"kind": "all_gather", "ordinal": 1, "num_bytes": 500 * num, "group_size": num}
    operations = [
        make_operation(begin, 60, num_bytes=seen - 500, sequence=0, group_size=num),
        make_operation(70, 75, sequence=1, **gathered),
    ]
    marks = [(30, 30 + encode), (60, 60 + decode + rank)] if encode + decode else []
    encoded, decoded = (marks[:1], marks[1:]) if marks else ([], [])
    fields = {"encode": flat(encoded), "decode": flat(decoded), "codec": flat(marks)}
    trace = make_trace(operations, [(0, 30)], [(0, 80)], **fields)
    told = {"compression": TRAFFIC if rank == 0 else TRAFFIC.model_copy(update={"num_buckets": 9})}
    return make_traced_record(rank, trace, 80, **told | changes)


def launch(method="top-k", repeat=0, num=3, order=None, of_rank=None, **changes):
    ranks = [traced(rank, num, **(of_rank or {})) for rank in order or range(num)]
    batch = {"global_batch": 33, "rank_batch": 11}
    strategy = Compressed(method=method)
    return make_traced_result(*ranks, case=method, strategy=strategy, repeat=repeat, **batch)


def row_of(*results, inspection=None):
    measured = {one.cell.repeat: one for one in results}
    return Launches(results[0].cell, inspection=inspection, measured=measured)


def figures(*results, **changes):
    return compression_of_row(row_of(*results, **changes))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0)])
def test_bytes_are_those_of_rank_0_by_the_rings_law(order):
    """2 · 2/3 of what is reduced, and 2/3 of what three ranks gather."""
    found = figures(launch(order=order))
    told = found.values["compression"]
    wire = 4 / 3 * 300 + 2 / 3 * 3 * 500
    assert (told.num_buckets, told.gradient_bytes, told.payload_bytes) == (2, 9000, 800)
    assert told.wire_bytes == round(wire) and told.payload_ratio == pytest.approx(800 / 9000)
    assert (found.values["payload_bytes"], found.values["wire_bytes"]) == (800, round(wire))
    assert told.method == "top-k" and found.stamps == []
    none = launch()
    ranks = [
        rank.model_copy(
            update={"compression": rank.compression.model_copy(update={"gradient_bytes": 0})}
        )
        for rank in none.ranks
    ]
    empty = none.model_copy(update={"ranks": ranks})
    assert figures(empty).values["compression"].payload_ratio is None


def test_times_are_means_over_ranks_and_estimates_over_launches():
    """Ranks decode for 2, 3 and 4 ms and encode for 4, or for 5 in the other launch."""
    results = [launch(), launch(repeat=1, of_rank={"encode": 5.0})]
    told = figures(*results).values["compression"]
    assert told.encode_s.model_dump() == pytest.approx(
        estimate_over_launches([0.004, 0.005]).model_dump()
    )
    assert told.decode_s.value == pytest.approx(0.003)
    codec_s = estimate_over_launches([0.007, 0.008])
    assert told.codec_s.model_dump() == pytest.approx(codec_s.model_dump())
    # 20 and 5 ms on two ranks, 16 and 5 on the last; two wait for 4.
    assert told.communicate_s.value == pytest.approx((25 + 25 + 21) / 3e3)
    assert told.transfer_s.value == pytest.approx(0.021)
    assert told.transfer_s.n == 2 and told.unavailable == {}
    exact, sent = 4 / 3 * 9000, 4 / 3 * 300 + 2 / 3 * 1500
    expected = break_even_byte_per_s(exact - sent, told.codec_s)
    assert told.break_even_byte_per_s.model_dump() == pytest.approx(expected.model_dump())
    assert decoding_s([LaunchAttribution(one) for one in results]) == pytest.approx(0.003)


def test_one_rank_breaks_even_nowhere():
    told = figures(launch(num=1)).values["compression"]
    assert told.unavailable == {"break_even_byte_per_s": ONE_RANK}
    assert told.break_even_byte_per_s is None and told.codec_s.value == pytest.approx(0.006)
    # All of one rank is seen, whatever its trace has.
    assert figures(launch(num=1, of_rank={"seen": 700})).stamps == []


@pytest.mark.parametrize(("seen", "stamped"), [(801, False), (800, False), (799, True)])
def test_a_trace_without_all_bytes_is_marked(seen, stamped):
    """Of 800 bytes that the hook counted; every launch counts."""
    found = figures(launch(), launch(repeat=1, of_rank={"seen": seen}))
    assert found.stamps == ([UNSEEN] if stamped else [])
    hook = figures(launch("powersgd", of_rank={"seen": seen})).values["compression"]
    assert hook.unavailable["codec_s"] == (NOT_ALL_SEEN if stamped else OF_TORCH)
    assert (hook.communicate_s is None) == stamped
    assert hook.unavailable["break_even_byte_per_s"] == hook.unavailable["codec_s"]


def test_why_times_are_not_known():
    def reasons(*results):
        return figures(*results).values["compression"].unavailable

    untraced = make_result(
        launch().cell, ranks=[make_record(0, compression=TRAFFIC), make_record(1), make_record(2)]
    )
    assert reasons(untraced) == dict.fromkeys((*TIMES, "break_even_byte_per_s"), NOT_TRACED)
    silent = {"encode": 0.0, "decode": 0.0}
    codec = (*CODEC_TIMES, "break_even_byte_per_s")
    assert reasons(launch("none", of_rank=silent)) == dict.fromkeys(codec, NOTHING_ENCODED)
    assert reasons(launch("powersgd")) == dict.fromkeys(codec, OF_TORCH)
    unseen = reasons(launch(), launch(repeat=1, of_rank=silent))
    assert unseen == dict.fromkeys(codec, NOT_SEEN)
    told = figures(launch("none", of_rank=silent)).values["compression"]
    assert told.communicate_s == estimate_signed([told.communicate_s.value])


def test_rows_without_traffic_or_compression_say_so():
    assert figures(make_failed(launch().cell)).reasons == {
        "compression": "no launch of this row succeeded"
    }
    others = [rank for rank in launch().ranks if rank.rank != 0]
    bare = make_result(launch().cell, ranks=others)
    assert "compression" in figures(bare).reasons
    assert "compression" in figures(bare, launch(repeat=1)).values
    noop = figures(make_failed(launch("noop").cell))
    assert noop.stamps == [BOUND]
    plain = make_result(make_cell("ddp", 2))
    assert figures(plain).reasons == {"compression": "the strategy does not compress gradients"}


def test_only_torchs_own_hooks_that_encode_are_unmarked():
    unmarked = [
        m for m in ("none", "noop", "powersgd", "top-k") if is_unmarked(Compressed(method=m))
    ]
    assert unmarked == ["powersgd"]


def test_the_error_of_the_gradient_is_that_of_the_first_rank_that_has_one():
    inspection = make_inspection(launch().cell)
    errors = [GradientError(relative_l2=0.25, cosine=c, step=7) for c in (None, 0.5)]
    ranks = [
        rank.model_copy(update={"gradient_error": error})
        for rank, error in zip(inspection.ranks, [None, *errors], strict=True)
    ]
    inspection = inspection.model_copy(update={"ranks": ranks})
    told = figures(launch(), inspection=inspection).values["compression"]
    assert (told.gradient_error, told.gradient_cosine, told.gradient_error_step) == (0.25, None, 7)
    bare = figures(launch()).values["compression"]
    assert (bare.gradient_error, bare.gradient_error_step) == (None, None)


def compared(case, method, steps, batch=33, losses=(5.0, 4.0)):
    """A row, and launches by repeat whose clean steps last so long."""
    cell = make_cell(case, 3, strategy=Compressed(method=method), global_batch=batch, rank_batch=11)
    measured = {
        repeat: make_result(
            cell,
            ranks=[
                make_record(r, (step_s,) * n, loss=[losses[0]] * (n + 1) + [losses[1]])
                for r in range(3)
            ],
        )
        for repeat, (step_s, n) in steps.items()
    }
    row = make_row(case, 3, global_batch=batch, compression=make_compression(method))
    return row, Launches(cell, measured=measured)


def test_steps_are_held_against_those_of_none_within_the_rounds():
    """Rounds 0 and 2 are in both: 0.2/0.4 and 0.9/0.6."""
    rows = [
        compared("top-k", "top-k", {0: (0.2, 4), 1: (9.0, 4), 2: (0.9, 6)}, losses=(5.0, 3.0)),
        compared("none", "none", {0: (0.4, 4), 2: (0.6, 4), 3: (1.0, 4)}),
        compared("sign", "sign", {7: (0.2, 4)}),
        compared("larger", "sign", {0: (0.2, 4)}, batch=66),
        compared("none-again", "none", {0: (0.8, 4)}),
    ]
    table = {("ddp", row.case, 3): launches for row, launches in rows}
    plain = make_row("plain", 1)
    found = against_uncompressed([plain, *(row for row, _ in rows)], table, "no link")
    assert found[0] is plain and found[4] is rows[3][0]
    top, none, sign, again = (found[i].compression for i in (1, 2, 3, 5))
    expected = estimate_over_launches([0.5, 1.5]).model_dump()
    assert top.step_ratio_to_none.model_dump() == pytest.approx(expected)
    assert none.step_ratio_to_none.value == pytest.approx(1.0) and none.step_ratio_to_none.n == 3
    assert sign.step_ratio_to_none is None
    assert again.step_ratio_to_none.value == pytest.approx(2.0)
    name = "break_even_replayed_byte_per_s"
    assert [one.unavailable.get(name) for one in (top, none, sign)] == ["no link", None, "no link"]
    assert top.losses is not None and top.losses.equal_steps == 6  # of the launch that trained 8
    unmeasured = rows[1][0].model_copy(update={"step_s": None})
    alone = against_uncompressed([rows[0][0], unmeasured], table, "no link")
    assert alone == [rows[0][0], unmeasured]


def test_the_link_on_which_a_step_is_as_long_as_that_of_none():
    """As at N=1, 3 MB less to send against 20 ms more; the row's own launches are at N=2."""
    rows, table = [], {}
    for case, method, alone in (("less", "sign", smaller(120)), ("none", "none", exact())):
        row, launches = compared(case, method, {0: (0.2, 4)})
        rows.append(row.model_copy(update={"world_size": 2}))
        table["ddp", case, 2] = Launches(N2, measured=launches.measured)
        table["ddp", case, 1] = Launches(alone.cell, measured={0: alone})
    told, _ = (row.compression for row in against_uncompressed(rows, table, the_link(2)))
    found = replayed_break_even(N2, table["ddp", "less", 1], table["ddp", "none", 1], the_link(2))
    assert told.break_even_replayed_byte_per_s == found
    assert found.value == pytest.approx(3_000_000 / 0.02, rel=1e-3)
    assert told.link_byte_per_s == the_link(2).bandwidth_byte_per_s("all_reduce", 2)
    assert "break_even_replayed_byte_per_s" not in told.unavailable
    missing = {key: one for key, one in table.items() if key != ("ddp", "less", 1)}
    told, _ = (row.compression for row in against_uncompressed(rows, missing, the_link(2)))
    assert "no launch of the strategy at N=1" in told.unavailable["break_even_replayed_byte_per_s"]
