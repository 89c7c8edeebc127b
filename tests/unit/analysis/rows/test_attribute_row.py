"""A row's attribution, field by field: launches of three ranks, of which rank 1 waits most."""

import numpy as np
import pytest

from scalebench.analysis.attribution import LaunchAttribution
from scalebench.analysis.budget import loss_budget, waits_most
from scalebench.analysis.rows.attribution import (
    FIELDS,
    StepTimes,
    attribute_row,
    disagreements,
)
from scalebench.analysis.rows.launches import Launches
from scalebench.records.rows.budget import RankTimes
from scalebench.records.trace import ClockAlignment
from scalebench.spec import Fsdp, Pipeline
from scalebench.stats import Estimate, estimate_signed
from scalebench.trace.matching import stragglers
from tests.builders.runs import make_failed, make_result
from tests.builders.traced import (
    flat,
    make_operation,
    make_trace,
    make_traced_record,
    make_traced_result,
    on_gpu,
)

COMPUTED = {0: [(0, 40)], 1: [(0, 20)], 2: [(0, 52)]}
STARTS = {0: 40, 1: 25, 2: 55}
STEPS = StepTimes(row_s=0.08, baseline_s=0.1)


def traced(rank, sizes=(300, 500), num=3, end=70, more=(), **changes):
    """80 ms: two buckets, the second, of 5 ms, at the end; ``more`` operations behind them."""
    size = {"group_size": num}
    operations = [
        make_operation(STARTS[rank], end, num_bytes=sizes[0], sequence=0, **size),
        make_operation(72, 77, ordinal=1, num_bytes=sizes[1], sequence=1, **size),
        *more,
    ]
    fields = {"compute": COMPUTED[rank], "steps": [(0, 80)], **changes}
    return make_trace(operations, **fields)


def launch(repeat=0, strategy=None, records=None, of_trace=None, **changes):
    ranks = [
        make_traced_record(rank, traced(rank, **of_trace or {}), 80, **{**(records or {})})
        for rank in range(3)
    ]
    batch = {"global_batch": 30, "rank_batch": 10}
    return make_traced_result(*ranks, repeat=repeat, strategy=strategy, **batch, **changes)


def row(*results):
    """A row of launches, by the repeats that their cells have."""
    return Launches(results[0].cell, measured={one.cell.repeat: one for one in results})


def plain(repeat=0):
    trace = make_trace(compute=[(0, 90)])
    batch = {"global_batch": 20, "rank_batch": 20}
    return make_traced_result(make_traced_record(0, trace), case="plain", repeat=repeat, **batch)


def attributed(*results, baseline=None, steps=STEPS):
    return attribute_row(row(*results), baseline, steps)


def three():
    """The launches differ in the end of the first bucket, its size, and in what probes cost."""
    return [
        launch(
            repeat,
            records={"local": local, "bare": bare, "logged_exposed_s": 0.01 * (repeat + 1)},
            of_trace={"end": end, "sizes": (size, 500), "unknown": {"k": 0.5, f"k{repeat}": 1.0}},
        )
        for repeat, end, size, local, bare in (
            (0, 66, 300, 50, 78),
            (1, 70, 600, 44, 80),
            (2, 71, 1500, 40, 79),
        )
    ]


def test_what_the_steps_were_made_of_is_the_mean_over_the_launches_of_who_waits_most():
    results = three()
    values = attributed(*results).values
    launches = [LaunchAttribution(result) for result in results]
    assert waits_most(launches) == 1
    # Rank 1 computes 20 of 80 ms; its buckets last from 25 to 66, 70 or 71 and for 5 ms more.
    comm_s = [0.046, 0.050, 0.051]
    assert values["comm_s"].model_dump() == pytest.approx(estimate_signed(comm_s).model_dump())
    assert values["exposed_comm_s"].value == pytest.approx(0.049)
    assert values["wait_s"].value == pytest.approx(0.030)  # from 25 to 55 for rank 2
    assert values["exposed_transfer_s"].value == pytest.approx(0.019)
    assert (values["compute_s"].value, values["compute_s"].n) == (pytest.approx(0.020), 3)
    ratios = [s / 0.020 for s in comm_s]
    expected = estimate_signed(ratios).model_dump()
    assert values["comm_compute_ratio"].model_dump() == pytest.approx(expected)
    assert values["overlap_ratio"].value == pytest.approx(0)


def test_volume_is_the_median_over_the_launches():
    """Of three ranks each sends 2 · 2/3 of what it hands over."""
    values = attributed(*three()).values
    assert (values["payload_bytes"], values["wire_bytes"]) == (1100, round(1100 * 4 / 3))
    unknown = launch(3, of_trace={"sizes": (None, 500)})
    fields = attributed(*three(), unknown)
    why = "the trace does not give the size of every operation"
    assert (fields.reasons["payload_bytes"], fields.reasons["wire_bytes"]) == (why, why)


def test_overhead_probes_and_kernels_of_all_launches():
    results = three()
    values = attributed(*results).values
    launches = [LaunchAttribution(result) for result in results]
    overhead = [one.trace_overhead for one in launches]
    assert values["trace_overhead"] == estimate_signed(overhead)
    effects = [80 / 78 - 1, 0, 80 / 79 - 1]
    expected = estimate_signed(effects).model_dump()
    assert values["probe_effect"].model_dump() == pytest.approx(expected, abs=1e-12)
    # Three ranks in each of three launches.
    assert values["unknown_kernels"] == {"k": 4.5, "k0": 3.0, "k1": 3.0, "k2": 3.0}
    arrivals = [arrival for one in launches for arrival in one.matched.arrivals]
    assert values["stragglers"] == stragglers(arrivals) and len(arrivals) == 6


def test_exposed_communication_has_three_estimates():
    values = attributed(*three()).values
    found = values["exposed_comm_estimates"]
    assert found.trace.value == pytest.approx(0.049)
    steps = [0.030, 0.036, 0.040]
    assert found.differential.model_dump() == pytest.approx(estimate_signed(steps).model_dump())
    logged = estimate_signed([0.01, 0.02, 0.03]).model_dump()
    assert found.ddp_logger.model_dump() == pytest.approx(logged)
    assert found.unavailable == {}
    # One launch without: no estimate of that kind; a strategy that cannot do without says so.
    bare = attributed(*three(), launch(3)).values["exposed_comm_estimates"]
    assert (bare.differential, bare.ddp_logger, bare.unavailable) == (None, None, {})
    sharded = attributed(launch(strategy=Fsdp())).values["exposed_comm_estimates"]
    assert list(sharded.unavailable) == ["differential"]
    assert sharded.unavailable["differential"] == Fsdp().always_communicates
    alone = attributed(launch(strategy=Fsdp(), records={"local": 50}))
    assert alone.values["exposed_comm_estimates"].unavailable == {}


@pytest.mark.parametrize(
    ("local_ms", "stamped"),
    [(30, False), (31.1, True), (29.5, False), (28.9, True)],
)
def test_estimates_disagree_where_they_differ_by_a_hundredth_of_the_step(local_ms, stamped):
    """By the trace 50 ms are exposed; 0.8 ms are a hundredth. Both launches are alike."""
    results = [launch(n, records={"local": local_ms}) for n in (0, 1)]
    assert ("estimates disagree" in attributed(*results).stamps) == stamped


@pytest.mark.parametrize(("bare", "stamped"), [(79.4, True), (79.7, False), (81, False)])
def test_probes_that_cost_more_than_half_a_hundredth_are_marked(bare, stamped):
    """80 ms over 79.4 are 0.76 %, over 79.7 0.38 %. One launch alone is not enough to say so."""
    results = [launch(n, records={"bare": bare}) for n in (0, 1)]
    assert attributed(*results).stamps == (["probe effect: 0.756 %"] if stamped else [])
    assert attributed(results[0]).stamps == []


def test_communication_is_told_by_kind_and_bucket():
    """A broadcast in one launch alone counts half. On rank 1 nothing is hidden."""
    more = [make_operation(77, 79, kind="broadcast", ordinal=2, num_bytes=None, group_size=3)]
    results = [launch(0, of_trace={"end": 66}), launch(1, of_trace={"end": 70, "more": more})]
    found = {(one.kind, one.ordinal): one for one in attributed(*results).values["communication"]}
    assert list(found) == [
        ("all_reduce", None), ("all_reduce", 0), ("all_reduce", 1),
        ("broadcast", None), ("broadcast", 2),
    ]  # fmt: skip
    for expected in (
        ("all_reduce", None, 2.0, 800.0, 0.048),
        ("all_reduce", 0, 1.0, 300.0, 0.043),
        ("all_reduce", 1, 1.0, 500.0, 0.005),
        ("broadcast", 2, 0.5, None, 0.001),
    ):
        told = found[expected[:2]]
        assert (told.kind, told.ordinal, told.phase) == (*expected[:2], "backward")
        assert (told.count, told.num_bytes) == expected[2:4]
        assert (told.total_s, told.exposed_s) == pytest.approx((expected[4], expected[4]))
        assert told.hidden_s == 0


def test_where_nothing_is_computed_or_sent_there_is_no_ratio():
    idle = make_traced_result(make_traced_record(0, make_trace()), case="plain")
    fields = attribute_row(row(idle), None, STEPS)
    assert fields.reasons["comm_compute_ratio"] == "nothing computed"
    assert fields.reasons["overlap_ratio"] == "no communication"
    assert fields.values["stragglers"] == []
    # A launch in which a rank computed nothing is left out.
    assert attribute_row(row(idle, plain(1)), None, STEPS).values["comm_compute_ratio"].n == 1


def test_where_sends_hold_up_the_rank_nobody_knows_what_is_hidden():
    first, second = launch(0), launch(1)
    blocked = second.ranks[2].trace.model_copy(update={"blocked": flat([(5, 6)])})
    ranks = [*second.ranks[:2], second.ranks[2].model_copy(update={"trace": blocked})]
    fields = attributed(first, second.model_copy(update={"ranks": ranks}))
    assert fields.reasons["overlap_ratio"].startswith("on CPU it is not known how much")
    assert "overlap_ratio" in attributed(first).values


def test_copies_are_told_on_a_gpu_whose_traces_have_them():
    def copying(repeat, spans):
        copies = None if spans is None else flat(spans)
        return on_gpu(launch(repeat, of_trace={"copies": copies}))

    on_cpu = attributed(launch()).reasons
    assert on_cpu["copies_s"] == on_cpu["comm_beside_copies_s"]
    assert on_cpu["copies_s"] == "on CPU copying is part of the computation"
    fields = attributed(copying(0, [(20, 30), (78, 79)]), copying(1, [(68, 71)]))
    assert fields.values["copies_s"].value == pytest.approx((0.011 + 0.003) / 2)
    assert fields.values["comm_beside_copies_s"].value == pytest.approx((0.005 + 0.002) / 2)
    old = attributed(copying(0, [(20, 30)]), copying(1, None)).reasons
    assert old["copies_s"] == "traces of version 0.1 do not say when memory was copied"


def test_transfer_and_wait_are_null_where_one_launch_cannot_part_them():
    first, second = launch(0), launch(1)
    moved = second.ranks[1].trace.model_copy(update={"clock_error_s": 0.5})
    ranks = [second.ranks[0], second.ranks[1].model_copy(update={"trace": moved}), second.ranks[2]]
    fields = attributed(first, second.model_copy(update={"ranks": ranks}))
    why = fields.reasons["wait_s"]
    assert fields.reasons["exposed_transfer_s"] == why and "clock of rank 1" in why
    assert "exposed_comm_s" in fields.values


def test_only_a_pipeline_has_a_bubble():
    reasons = attributed(launch()).reasons
    assert reasons["bubble_ratio"] == "only pipelines have a bubble"
    assert reasons["pipeline"] == "the ranks form no pipeline"
    whole = "the trace does not contain every forward and backward pass of a step"
    strategy = Pipeline(schedule="gpipe", microbatches=3)
    reasons = attributed(launch(strategy=strategy)).reasons
    assert reasons["bubble_ratio"] == reasons["pipeline"] == whole


def test_the_budget_is_that_of_rounds_in_which_the_baseline_was_traced():
    results = three()
    clocks = [ClockAlignment(method="ping-pong", at_ns=0, offset_ns=0, bound_ns=b) for b in (3, 5)]
    ranks = [
        rank.model_copy(update={"clock": clock})
        for rank, clock in zip(results[1].ranks, [None, *clocks], strict=True)
    ]
    results[1] = results[1].model_copy(update={"ranks": ranks})
    baseline = Launches(plain().cell, measured={n: plain(n) for n in (1, 2, 5)})
    fields = attribute_row(row(*results), baseline, STEPS)
    launches = [LaunchAttribution(result) for result in results]
    rounds = [(launches[n], LaunchAttribution(plain(n))) for n in (1, 2)]
    expected = loss_budget(rounds, 1, (0.08, 0.1), 0.5)  # 10 of the baseline's 20 samples
    found = fields.values["budget"]
    own = {"skew", "clock_bound_s", "mean_over_ranks", "ranks"}
    assert found.model_dump(exclude=own) == expected.model_dump(exclude=own)
    assert found.ideal_s == pytest.approx(0.05) and found.rank == 1
    assert found.skew == pytest.approx(float(np.mean([one.skew(1) for one in launches])))
    assert found.clock_bound_s == pytest.approx(8e-9)
    assert found.mean_over_ranks is False
    assert [one.rank for one in found.ranks] == [0, 1, 2]
    assert ("budget open" in fields.stamps) == (not found.closes)


def test_the_budget_of_a_pipeline_is_the_mean_over_its_ranks():
    """Rounds 1 and 2 have a baseline of one rank."""
    strategy = Pipeline(schedule="gpipe", microbatches=5)
    results = [launch(n, strategy, of_trace={"end": end}) for n, end in ((0, 66), (1, 70), (2, 71))]
    baseline = Launches(plain().cell, measured={n: plain(n) for n in (1, 2)})
    found = attribute_row(row(*results), baseline, STEPS).values["budget"]
    launches = [LaunchAttribution(result) for result in results]
    rank, why = waits_most(launches), launches[0].not_apart
    rounds = [(launches[n], LaunchAttribution(plain(n))) for n in (1, 2)]
    expected = loss_budget(rounds, rank, (0.08, 0.1), 0.5, why, (0, 1, 2))
    own = {"skew", "clock_bound_s", "mean_over_ranks", "ranks"}
    assert found.model_dump(exclude=own) == expected.model_dump(exclude=own)
    assert found.mean_over_ranks is True


def test_the_times_of_every_rank_are_means_over_all_launches():
    baseline = Launches(plain().cell, measured={0: plain()})
    results = [launch(0, of_trace={"end": 66}), launch(1, of_trace={"end": 70})]
    found = attribute_row(row(*results), baseline, STEPS).values["budget"].ranks[0]
    ms = {
        "step_s": 80, "compute_s": 40, "busy_s": 40, "comm_s": 33, "exposed_comm_s": 33,
        "exposed_transfer_s": 18, "wait_s": 15, "codec_s": 0, "data_stall_s": 0,
        "other_idle_s": 7, "bubble_s": 0, "copies_s": 0, "copies_alone_s": 0,
        "comm_beside_copies_s": 0,
    }  # fmt: skip
    expected = RankTimes(rank=0, **{name: value / 1e3 for name, value in ms.items()})
    assert found.model_dump() == pytest.approx(expected.model_dump())
    gpu = Launches(on_gpu(plain()).cell, measured={0: on_gpu(plain())})
    old = attribute_row(row(*map(on_gpu, results)), gpu, STEPS).values["budget"].ranks[0]
    none = {"copies_s", "copies_alone_s", "comm_beside_copies_s"}
    assert {name for name in RankTimes.model_fields if getattr(old, name) is None} == none


def test_a_budget_that_does_not_close_is_marked():
    """Of a headline of 80 ms 16 ms are in no part, where the traced steps have all in theirs."""
    baseline = Launches(plain().cell, measured={0: plain()})
    assert attribute_row(row(launch()), baseline, STEPS).stamps == []
    slow = launch(records={"traced": 100.0})
    fields = attribute_row(row(slow), baseline, STEPS)
    assert (fields.stamps == ["budget open"]) == (not fields.values["budget"].closes)


@pytest.mark.parametrize(
    ("baseline", "baseline_s"),
    [(None, 0.1), ({0: plain()}, None), ({7: plain(7)}, 0.1), ({}, 0.1)],
)
def test_without_a_common_round_or_a_baseline_there_is_no_budget(baseline, baseline_s):
    base = None if baseline is None else Launches(plain().cell, measured=baseline)
    fields = attribute_row(row(launch()), base, StepTimes(0.08, baseline_s))
    assert fields.reasons["budget"] == ("no round in which the plain baseline was also traced")


def test_a_row_that_was_not_traced_says_why_in_every_field():
    untraced = [
        make_result(launch(n).cell, ranks=[
            rank.model_copy(update={"trace": None, "trace_unavailable": why})
            for rank in launch(n).ranks
        ])
        for n, why in ((0, "first"), (1, "second"))
    ]  # fmt: skip
    assert attributed(*untraced).reasons == dict.fromkeys(FIELDS, "first")
    failed = make_failed(launch().cell)
    nothing = dict.fromkeys(FIELDS, "no launch of this row succeeded")
    assert attributed(failed).reasons == nothing
    assert attributed(launch(), steps=None).reasons == nothing
    assert attributed(*untraced).values == {}


def span(low, high):
    return Estimate(value=(low + high) / 2, low=low, high=high, n=2)


def test_estimates_disagree_where_their_intervals_do_not_meet():
    one, touching, above = span(1, 2), span(2, 3), span(2.5, 4)
    found = disagreements({"a": above, "b": one, "c": touching, "d": span(8, 9)})
    assert found == [["a", "b"], ["a", "d"], ["b", "d"], ["c", "d"]]
    assert disagreements({"a": one, "b": touching}) == []
    assert disagreements({"a": touching, "b": one}) == []
    assert disagreements({"a": one}) is None and disagreements({}) is None
    assert disagreements({"a": one, "b": Estimate(value=5, n=1)}) is None
