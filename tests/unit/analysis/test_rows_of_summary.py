"""Rows of the summary, where launches are few, lost, or not of every kind: numbers and reasons."""

import pytest

from scalebench.analysis.rows.launches import Launches, grouped
from scalebench.analysis.summarise import (
    _batch_words,
    _correctness,
    _hosts,
    _mean_step_s,
    _no_hosts,
    _reason_for_null,
    _samples,
    _stamps,
    _status,
    summarise,
)
from scalebench.costmodel.links.profile import CalibratedPoint, profile_of
from scalebench.gate.bootstrap import mean_variance
from scalebench.records.outcome import skipped_result
from scalebench.records.rank import Memory
from scalebench.records.run import Failure
from scalebench.records.summary import StepSamples
from scalebench.spec import Script
from scalebench.spec.presets import PRESETS
from scalebench.spec.script import ScriptTarget
from scalebench.spec.suites import Collectives, Suite
from scalebench.spec.virtual_hosts import VirtualHosts
from tests.builders.link_sweeps import sizes, sweep
from tests.builders.runs import (
    make_cell,
    make_failed,
    make_inspection,
    make_record,
    make_result,
    make_run,
)

PLAIN, THREE = make_cell("plain", 1), make_cell("ddp", 3, global_batch=33, rank_batch=11)


def at(cell, repeat):
    return cell.model_copy(update={"repeat": repeat})


def launches(*results, cell=THREE, inspection=None, planned=None, **changes):
    measured = {result.cell.repeat: result for result in results}
    number = len(results) if planned is None else planned
    return Launches(cell, inspection, measured, number, **changes)


def row_of(results, case="ddp", **changes):
    rows = summarise(make_run(results, **changes)).rows
    return next(row for row in rows if row.case == case)


def test_the_status_is_that_of_the_first_launch_that_was_not_well():
    good, failed = make_result(at(THREE, 0)), make_failed(at(THREE, 1), "why", "oom")
    inspection = make_inspection(THREE)
    assert _status(launches(good), "complete") == ("ok", None)
    assert _status(launches(good, inspection=inspection), "complete") == ("ok", None)
    told = "why (numbers from 1 of 3 launches that succeeded)"
    assert _status(launches(good, failed, planned=3), "complete") == ("oom", told)
    assert _status(launches(failed), "complete") == ("oom", "why")
    bad = make_inspection(THREE, status="failed", reason="it deviates")
    found = _status(launches(failed, inspection=bad), "complete")
    assert found == ("failed", "it deviates")
    saved = (make_failed(at(THREE, 5), "the disk is full"),)
    found = _status(launches(good, checkpoints=saved), "complete")
    assert found == ("failed", "the disk is full (numbers from 1 of 1 launches that succeeded)")
    silent = make_result(at(THREE, 2), status="failed", reason=None, ranks=[])
    assert _status(launches(silent), "complete") == ("failed", "no reason recorded")


def test_what_was_not_launched_is_skipped_and_says_why():
    skipped = "skipped", "not run: the run is interrupted"
    assert _status(launches(), "interrupted") == skipped
    assert _status(launches(inspection=make_inspection(THREE)), "interrupted") == skipped
    never = make_cell("ddp", 8, skip_reason="8 ranks need 8 GPUs")
    result = skipped_result(never, never.skip_reason, "now")
    assert _status(launches(result, cell=never), "complete") == ("skipped", "8 ranks need 8 GPUs")


def test_the_batch_of_a_baseline_in_words():
    assert _batch_words(make_cell("ddp", 2)) == "32"
    assert _batch_words(make_cell("ddp", 2, scaling="weak")) == "32 per rank"


GOOD = launches(make_result(THREE))
BATCH = "no plain baseline at a batch of 33"


@pytest.mark.parametrize(
    ("name", "row", "baseline", "why"),
    [
        ("baseline", GOOD, None, BATCH),
        ("baseline", launches(), None, BATCH),
        ("speedup", GOOD, None, BATCH),
        ("efficiency", GOOD, None, BATCH),
        ("efficiency", GOOD, launches(), "no launch of the plain baseline succeeded"),
        (
            "speedup",
            GOOD,
            launches(make_failed(PLAIN)),
            "no launch of the plain baseline succeeded",
        ),
        ("speedup", GOOD, GOOD, "no round in which both the row and the baseline succeeded"),
        ("step_s", launches(), GOOD, "no launch of this row succeeded"),
        ("speedup", launches(make_failed(THREE)), GOOD, "no launch of this row succeeded"),
        ("correctness", launches(), GOOD, "the inspection launch failed"),
        ("correctness", GOOD, None, "the inspection launch failed"),
        ("tokens_per_s", GOOD, None, "the workload has no tokens"),
        ("num_parameters", GOOD, None, "no optimizer was seen"),
        ("efficiency_wrapped", GOOD, None, "no round in which the strategy succeeded at N=1"),
        ("loss_first", GOOD, None, "the losses of a script are not known"),
        ("loss_last", GOOD, None, "the losses of a script are not known"),
        ("launch_s", GOOD, None, "not recorded"),
        ("something", GOOD, None, "not recorded"),
    ],
)
def test_every_null_has_its_own_reason(name, row, baseline, why):
    assert _reason_for_null(name, row, baseline) == why


def test_a_launch_that_took_turns_with_others_has_no_time_of_its_own():
    alone, shared = make_result(at(THREE, 0)), make_result(at(THREE, 1), shared_with=["a", "b"])
    told = _reason_for_null("launch_s", launches(alone, shared), None)
    assert told.startswith("the row took turns with others")
    assert _reason_for_null("tokens_per_s", launches(shared), None) == "the workload has no tokens"


def test_a_script_is_unverified_once_it_ran():
    script = make_cell("script", 2, strategy=Script())
    found = _correctness(launches(make_result(script), cell=script))
    assert (found.status, "no reference to compare" in found.reason) == ("unverified", True)
    assert _correctness(launches(cell=script)) is None


def test_correctness_is_rank_0s_wherever_it_stands():
    inspection = make_inspection(THREE)
    turned = inspection.model_copy(update={"ranks": inspection.ranks[::-1]})
    assert _correctness(launches(inspection=turned)).gradient_deviation == 2e-7
    without = inspection.model_copy(update={"ranks": inspection.ranks[1:]})
    assert _correctness(launches(inspection=without)) is None
    assert _correctness(launches()) is None


def test_stamps_of_a_row_by_their_cause():
    assert _stamps(GOOD, None) == []
    steady = make_result(at(THREE, 0))
    ranks = [make_record(rank, steady=rank > 0) for rank in range(3)]
    assert _stamps(launches(steady, make_result(at(THREE, 1), ranks=ranks)), GOOD) == ["unsteady"]
    others = [make_record(rank, steady=rank == 0) for rank in range(3)]
    assert _stamps(launches(make_result(THREE, ranks=others)), None) == [], "rank 0 decides for all"
    paced = make_cell("ddp", 2, workload=PRESETS["paced"], oversubscribed=True)
    assert _stamps(launches(make_result(paced), cell=paced), None) == ["oversubscribed", "paced"]
    script = make_cell("script", 2, strategy=Script())
    assert _stamps(launches(make_result(script), cell=script), None) == ["unverified"]


def test_the_samples_of_a_launch():
    ranks = [
        make_record(0, [1.0, 4.0, 2.0], memory=Memory(allocated_bytes=7)),
        make_record(1, [3.0, 2.0, 2.0], memory=Memory(allocated_bytes=9)),
    ]
    cell = make_cell("ddp", 2, 4, device="cuda", backend="nccl")
    assert _samples(make_result(cell, ranks=ranks)) == StepSamples(
        repeat=4,
        step_s=[3.0, 4.0, 2.0],
        pace_s=[3.0, 2.0, 2.0],
        mean_s=7 / 3,
        mean_variance=mean_variance([3.0, 2.0, 2.0]),
        peak_memory_bytes=9,
    )


def test_the_mean_step_of_some_rounds():
    good = {n: make_result(at(THREE, n), s) for n, s in ((0, 0.1), (1, 0.4), (5, 0.9))}
    assert _mean_step_s(good, [0, 1]) == pytest.approx(0.2)
    assert _mean_step_s(good, [5]) == pytest.approx(0.9)
    assert _mean_step_s(good, []) is None


def with_hosts(**changes):
    hosts = VirtualHosts(**{"link_bit_per_s": (500_000_000,), **changes})
    return make_cell("ddp", 3, virtual_hosts=hosts)


def test_hosts_of_a_row_and_why_something_is_not_said_of_them():
    alike = with_hosts(cpus_per_rank=0.25)
    assert _hosts(alike) == {
        "virtual_hosts": True, "link": "500mbit", "link_bit_per_s": [500_000_000] * 3,
        "cpus_per_rank": 0.25, "cpu_shares": None,
    }  # fmt: skip
    assert _no_hosts(alike) == {"cpu_shares": "all ranks have the same: see cpus_per_rank"}
    uneven = with_hosts(cpu_shares=(0.5, 0.25, 0.75, 0.125))
    assert _hosts(uneven)["cpu_shares"] == [0.5, 0.25, 0.75]
    assert _no_hosts(uneven) == {"cpus_per_rank": "ranks have different shares: see cpu_shares"}
    free = "no CPU share was set"
    assert _no_hosts(with_hosts()) == {"cpus_per_rank": free, "cpu_shares": free}
    assert _hosts(THREE) == {"virtual_hosts": False}
    assert _no_hosts(THREE).keys() == {"link", "link_bit_per_s", "cpus_per_rank", "cpu_shares"}


def test_throughput_tokens_and_losses_of_a_row_by_hand():
    """Steps of 0.2 and 0.8 s: 33 samples in 0.4, of 64 tokens each."""
    losses = [[5.0, 4.0, 3.0, 2.5, 2.0, 1.0], [7.0, 4.0, 3.0, 2.5, 2.0, 3.0], [6.0] + [5.0] * 5]
    first = make_result(at(THREE, 0), 0.2)
    ranks = [r.model_copy(update={"loss": one}) for r, one in zip(first.ranks, losses, strict=True)]
    results = [first.model_copy(update={"ranks": ranks}), make_result(at(THREE, 1), 0.8)]
    row = row_of([make_result(PLAIN), *results])
    assert row.throughput.value == pytest.approx(33 / 0.4)
    assert row.tokens_per_s.value == pytest.approx(33 / 0.4 * 64)
    assert (row.loss_first, row.loss_last) == (6.0, 3.0)
    assert (row.num_clean_steps, row.num_parameters) == (8, 421_000)
    assert (row.global_batch, row.rank_batch, row.world_size) == (33, 11, 3)
    assert row.launch_s.value == pytest.approx(0.4) and row.launch_s.n == 2


def test_one_launch_whose_samples_were_not_counted_makes_throughput_that_of_steps():
    target = ScriptTarget(name="train", program="train.py")
    cell = make_cell("script", 2, strategy=Script(), workload=target, backend=None)

    def launch(repeat, samples):
        ranks = [make_record(rank, [0.25] * 4, samples_per_step=samples) for rank in range(2)]
        return make_result(at(cell, repeat), ranks=ranks)

    both = row_of([launch(0, 8.0), launch(1, 8.0)], "script")
    assert both.throughput.value == pytest.approx(16 / 0.25)
    assert "samples not counted" not in both.stamps
    one = row_of([launch(0, 8.0), launch(1, None)], "script")
    assert one.throughput.value == pytest.approx(4.0)
    assert "samples not counted" in one.stamps


def test_a_row_that_lost_a_rank_has_no_numbers_of_all_ranks():
    lost = [Failure(rank=2, kind="signal", message="killed")]
    results = [make_result(PLAIN), make_result(THREE, lost=lost)]
    row = row_of(results)
    names = ("throughput", "tokens_per_s", "speedup", "efficiency", "efficiency_wrapped")
    assert [getattr(row, name) for name in names] == [None] * 5
    assert {row.unavailable[name] for name in names} == {
        "a rank was lost, so the steps are not those of all ranks"
    }
    assert row.step_s is not None and row.stamps[0] == "lost a rank: rank 2 (killed)"


def timed(link, *names):
    suites = tuple(
        Suite(name=name, question="How fast?", collectives=Collectives()) for name in names
    )
    run = make_run([make_result(PLAIN)])
    spec = run.info.spec.model_copy(update={"suites": (*run.info.spec.suites, *suites)})
    run.info = run.info.model_copy(update={"spec": spec})
    run.link = link
    return summarise(run).collectives


def link(num_wrong=0):
    size = sizes(8, 1 << 10, 1 << 20)
    points = [
        CalibratedPoint(**point.model_dump(exclude={"algbw_byte_per_s", "busbw_byte_per_s"}))
        for point in sweep(size, size * 1e-8, world_size=2)
    ]
    points[2:4] = [one.model_copy(update={"num_wrong": num_wrong}) for one in points[2:4]]
    return profile_of(points, (), created="now", version="0", device="cpu", backend="gloo")


def test_what_suites_of_collectives_came_to():
    assert timed(None) is None
    nothing = timed(None, "links", "more")
    assert (nothing.suites, nothing.num_points, nothing.num_wrong) == (["links", "more"], 0, 0)
    assert (nothing.fits, nothing.failure) == ([], "no link was calibrated in this run")
    good = timed(link(), "links")
    assert (good.num_points, good.num_wrong, good.failure) == (8, 0, None)
    assert good.fits == [row for fit in link().fits for row in fit.rows()] != []
    wrong = timed(link(1), "links")
    assert (wrong.num_wrong, wrong.failure) == (2, "2 elements of results are wrong")


def test_rows_know_who_is_their_baseline():
    run = make_run([make_result(PLAIN), make_result(make_cell("ddp", 2))])
    assert list(grouped(run)) == [("ddp", "plain", 1), ("ddp", "ddp", 2)]
    assert row_of(list(run.results.values())).baseline == ("ddp", "plain", 1)
