"""What checkpoints cost, figure by figure: two launches of three ranks."""

import pytest

from scalebench.analysis.rows.recovery import (
    elastic_figures,
    failure_figures,
    figures_of,
    recovery_of_row,
    save_figures,
)
from scalebench.records.recovery import (
    ElasticRun,
    ElasticStretch,
    FaultTimeline,
    RecoveryRecord,
    RestoreSample,
    SaveSample,
)
from scalebench.stats import estimate_over_launches, estimate_signed
from tests.builders.runs import make_cell, make_failed, make_record, make_result


def save(stall_s, durable_s, quiet_s, later_s, num_beside, **changes):
    fields = {"method": "async", "step": 10, "bytes": 600}
    return SaveSample(
        stall_s=stall_s,
        durable_s=durable_s,
        quiet_s=quiet_s,
        later_s=later_s,
        num_beside=num_beside,
        **{**fields, **changes},
    )


def three_saves():
    """As two ranks saw them. Quiet steps, of the slower rank: 2 2 3, 2 4 4 and 2 2 2; median 2."""
    return [
        (
            save(0.5, 4.0, [2, 1, 3], [3, 5, 2], 1, extra_host_bytes=70, extra_device_bytes=8),
            save(0.25, 3.0, [1, 2, 1], [4, 4, 9], 2, extra_host_bytes=50, extra_device_bytes=9),
        ),
        (
            save(0.125, 1.0, [2, 4, 1], [1, 1, 1], 2, extra_host_bytes=60, extra_device_bytes=3),
            save(0.25, 2.0, [1, 1, 4], [1, 2, 1], 1, extra_host_bytes=40, extra_device_bytes=2),
        ),
        (
            save(1.0, 8.0, [2, 2, 2], [5, 1, 1], 0, extra_host_bytes=10, extra_device_bytes=1),
            save(1.0, 8.0, [2, 2, 2], [5, 1, 1], 0, bytes=500, extra_host_bytes=10,
                 extra_device_bytes=4),
        ),
    ]  # fmt: skip


def test_every_figure_of_a_way_to_save():
    found = save_figures("async", three_saves())
    assert found.method == "async" and found.unavailable == {}
    assert found.stall_s == estimate_over_launches([0.5, 0.25, 1.0])
    assert found.durable_s == estimate_over_launches([4.0, 2.0, 8.0])
    assert found.bandwidth_byte_per_s == estimate_over_launches([150, 300, 75])
    assert (found.bytes, found.steps_beside) == (600, pytest.approx(4 / 3))
    # Two steps beside the first save take 4 + 5 s, two beside the second 1 + 2 s, none the third.
    assert found.slower_s == estimate_signed([9 - 4, 3 - 4, 0])
    assert found.slowdown == pytest.approx((5 - 1 + 0) / (4 * 2))
    assert found.cost_s == estimate_over_launches([0.5 + 5, 0.25, 1.0])
    assert (found.extra_host_bytes, found.extra_device_bytes) == (70, 9)


def test_a_save_with_nothing_beside_it_says_why():
    quiet = [(save(0.5, 4.0, [2, 2], [9, 9], 0, extra_host_bytes=3),)]
    found = save_figures("full", quiet)
    assert (found.slower_s, found.slowdown, found.steps_beside) == (None, None, 0)
    assert (found.extra_host_bytes, found.extra_device_bytes) == (3, None)
    assert found.unavailable == {
        "slower_s": "the checkpoint was on the disk before the next step began",
        "slowdown": "the checkpoint was on the disk before the next step began",
        "extra_device_bytes": "the ranks are on the CPU",
    }
    assert found.cost_s == estimate_over_launches([0.5])


def restore(load_s, first_step_s, **changes):
    fields = {"method": "full", "saved_world_size": 3, "num_tensors": 7}
    return RestoreSample(load_s=load_s, first_step_s=first_step_s, **{**fields, **changes})


def test_saves_and_restores_of_several_launches():
    first = [
        RecoveryRecord(
            saves=[save(0.5, 4.0, [1], [2], 0), save(0.25, 1.0, [1], [2], 0, method="full")],
            restores=[restore(1.0, 0.5, continues_equal=True), restore(4.0, 0.125, num_tensors=9)],
            file_system=None,
            unavailable={"sharded": "why"},
        ),
        RecoveryRecord(
            saves=[save(0.75, 2.0, [1], [2], 0), save(0.125, 3.0, [1], [2], 0, method="full")],
            restores=[restore(2.0, 0.25), restore(3.0, 0.75, method="async")],
            file_system="ext4",
        ),
    ]
    second = [
        RecoveryRecord(saves=[save(1.5, 8.0, [1], [2], 0)], file_system="tmpfs"),
        RecoveryRecord(saves=[save(1.0, 9.0, [1], [2], 0)], unavailable={"async-pinned": "on CPU"}),
    ]
    found = figures_of([first, second])
    assert [(one.method, one.stall_s.n) for one in found.saves] == [("async", 2), ("full", 1)]
    assert found.saves[0].stall_s == estimate_over_launches([0.75, 1.5])
    assert found.saves[0].durable_s == estimate_over_launches([4.0, 9.0])
    assert found.saves[1].stall_s == estimate_over_launches([0.25])
    assert [one.model_dump() for one in found.restores] == [
        {
            "method": "full",
            "saved_world_size": 3,
            "load_s": load_s,
            "first_step_s": first_step_s,
            "num_tensors": num_tensors,
            "continues_equal": equal,
        }
        for load_s, first_step_s, num_tensors, equal in ((2.0, 0.5, 7, True), (4.0, 0.75, 9, None))
    ]
    assert found.file_system == "ext4"
    assert found.unavailable == {"sharded": "why", "async-pinned": "on CPU"}
    assert (found.failures, found.elastic) == ([], None)


def fault(*seconds, failed=20, saved=13, data_s=0.5, kind="kill", by="scalebench"):
    names = ("notice", "stop", "start", "rendezvous", "build", "load", "first_step", "catch_up")
    return FaultTimeline(
        kind=kind,
        restarted_by=by,
        rank=1,
        failed_after=failed,
        saved_after=saved,
        phases_s=dict(zip(names, seconds, strict=True)),
        total_s=sum(seconds),
        data_s=data_s,
    )


ONE = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)
TWO = (3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0)


def test_every_figure_of_a_kind_of_failure():
    found, other = failure_figures(
        [fault(*ONE), fault(*TWO, by="torchrun"), fault(*TWO, failed=9, saved=8, data_s=2.0)]
    )
    assert (found.kind, found.restarted_by, other.restarted_by) == (
        "kill",
        "scalebench",
        "torchrun",
    )
    assert list(found.phases_s) == [
        "notice", "stop", "start", "rendezvous", "build", "load", "first_step", "catch_up"
    ]  # fmt: skip
    for phase, (a, b) in zip(found.phases_s.values(), zip(ONE, TWO, strict=True), strict=True):
        assert phase == estimate_signed([a, b])
    assert found.restart_s == estimate_signed([63.0, 18.0])  # up to the load, the load included
    assert found.total_s == estimate_signed([255.0, 24.0])
    assert found.lost_steps == (7 + 1) / 2
    assert found.badput_s == {
        "infrastructure": estimate_signed([3.0, 6.0]),
        "initialisation": estimate_signed([28.0, 9.0]),
        "restore": estimate_signed([31.5, 1.0]),
        "data": estimate_signed([0.5, 2.0]),
        "lost_progress": estimate_signed([192.0, 6.0]),
    }
    assert (found.unavailable, other.total_s.n) == ({}, 1)


def test_where_one_failure_did_not_note_the_data_restore_holds_it_in_all():
    (found,) = failure_figures([fault(*ONE), fault(*TWO, data_s=None)])
    assert found.badput_s["restore"] == estimate_signed([32.0, 3.0])
    assert found.badput_s["data"] is None
    assert list(found.unavailable) == ["data"]
    (zero,) = failure_figures([fault(*ONE, data_s=0.0)])
    assert zero.badput_s["restore"].value == 32.0 and zero.badput_s["data"].value == 0.0
    assert zero.unavailable == {}


def stretch(world_size, rank_batch, first, loss, step_s, accumulate=1):
    return ElasticStretch(
        world_size=world_size,
        rank_batch=rank_batch,
        accumulate=accumulate,
        first=first,
        loss=loss,
        step_s=step_s,
    )


def elastic_run(factor, shrink_s, grow_s, last_loss):
    """Three ranks, two, three again; the fourth step is 10 % off, the last in no other run."""
    return ElasticRun(
        stretches=[
            stretch(3, 8, 1, [5.0, 4.0], [factor, 3 * factor, factor]),
            stretch(2, 12, 3, [3.0, 2.2], [2 * factor, 6 * factor], accumulate=2),
            stretch(3, 8, 5, [1.0, last_loss], []),
        ],
        shrink_s=shrink_s,
        grow_s=grow_s,
        unbroken_loss=[5.0, 4.0, 3.0, 2.0, 1.0],
    )


def test_every_figure_of_a_job_that_lost_a_rank_once():
    found = elastic_figures([elastic_run(1.0, 1.5, 0.5, 99.0)])
    figures = [
        (one.world_size, one.rank_batch, one.accumulate, one.first_step, one.num_steps)
        for one in found.stretches
    ]
    assert figures == [(3, 8, 1, 1, 2), (2, 12, 2, 3, 2), (3, 8, 1, 5, 2)]
    assert [one.step_s for one in found.stretches] == [1.0, 4.0, None]
    assert [one.throughput for one in found.stretches] == [24.0, 6.0, None]
    assert [one.throughput_over_losses for one in found.stretches] == [None, None, None]
    assert [one.loss for one in found.stretches] == [[5.0, 4.0], [3.0, 2.2], [1.0, 99.0]]
    assert (found.shrink_s, found.grow_s) == (1.5, 0.5)
    assert found.loss_deviation == pytest.approx(0.1)
    assert (found.shrink_over_losses_s, found.grow_over_losses_s) == (None, None)


def test_intervals_of_a_job_that_lost_a_rank_three_times():
    runs = [elastic_run(f, 10 * f, 7 / f, 1.0) for f in (1.0, 2.0, 4.0)]
    found = elastic_figures(runs)
    assert (found.shrink_s, found.grow_s) == (10.0, 7.0)
    assert found.shrink_over_losses_s == estimate_signed([10.0, 20.0, 40.0])
    assert found.grow_over_losses_s == estimate_signed([7.0, 3.5, 1.75])
    first, second, third = found.stretches
    assert (first.step_s, first.throughput) == (1.0, 24.0)
    assert first.throughput_over_losses == estimate_signed([24.0, 12.0, 6.0])
    assert second.throughput_over_losses == estimate_signed([6.0, 3.0, 1.5])
    assert third.throughput_over_losses is None


def test_jobs_that_went_through_other_stretches_are_refused():
    run = elastic_run(1.0, 1.0, 1.0, 1.0)
    shorter = run.model_copy(update={"stretches": run.stretches[:2]})
    with pytest.raises(ValueError, match="zip"):
        elastic_figures([run, shorter])


def test_a_loss_below_that_of_the_other_run_deviates_as_much_as_one_above():
    run = elastic_run(1.0, 1.0, 1.0, 1.0)
    below = run.model_copy(update={"unbroken_loss": [5.0, 5.0, 3.0, 2.2, 1.0]})
    assert elastic_figures([below]).loss_deviation == pytest.approx(0.2)
    none = run.model_copy(update={"unbroken_loss": []})
    assert elastic_figures([none]).loss_deviation is None


def test_a_row_has_records_faults_and_elastic_runs_of_its_launches():
    cell = make_cell("ddp", 2, purpose="save")
    records = [make_record(r, recovery=RecoveryRecord(file_system="ext4")) for r in (0, 1)]
    saving = make_result(cell, ranks=[*records, make_record(2)], faults=[fault(*ONE)])
    runs = [elastic_run(f, f, f, 1.0) for f in (1.0, 2.0, 4.0)]
    broken = make_failed(cell).model_copy(
        update={"faults": [fault(*TWO)], "elastic": runs[0], "elastic_repeats": runs[1:]}
    )
    found = recovery_of_row([saving, broken]).values["recovery"]
    assert found.file_system == "ext4"
    assert [one.total_s.n for one in found.failures] == [2]
    assert found.elastic.shrink_over_losses_s == estimate_signed([1.0, 2.0, 4.0])
    only = recovery_of_row([saving]).values["recovery"]
    assert only.elastic is None and only.failures[0].total_s.n == 1
    fields = recovery_of_row([broken])
    assert fields.reasons == {"recovery": "no launch that saved or restored succeeded"}
    assert recovery_of_row([]).reasons == {"recovery": "no checkpoint of this row was saved"}


def test_ranks_that_disagree_about_what_was_saved_are_refused():
    one, other = save(0.5, 4.0, [1], [2], 0), save(0.5, 4.0, [1, 1], [2], 0)
    for ranks in ([[one, one], [one]], [[one], [other]]):
        with pytest.raises(ValueError, match="zip"):
            figures_of([[RecoveryRecord(saves=saves) for saves in ranks]])
