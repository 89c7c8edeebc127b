"""Probes by real ranks: right results are called right, and what was planted is found."""

import pytest

from scalebench.launch.base import ProbeFailed
from scalebench.launch.local import LocalLauncher
from scalebench.spec import probes
from scalebench.spec.base import COLLECTIVES, EITHER_PLACE
from tests.examples import cases

NUM_RANKS = 3
SIZES_BYTES = (4, 1000, 100_000)
DTYPES = ("float32", "bfloat16", "int8")


@pytest.fixture(scope="module")
def launcher():
    with LocalLauncher() as made:
        yield made


def job(num_ranks):
    return {"world_size": num_ranks, "device": "cpu", "backend": "gloo", "threads": 1}


def sweep(num_ranks, **settings):
    ways = [*((name, {"peers": (num_ranks - 1, 0)}) for name in COLLECTIVES)]
    ways += [(name, {"in_place": True}) for name in EITHER_PLACE]
    transfers = tuple(
        probes.Transfer(operation=name, size_bytes=size, dtype=dtype, back_to_back=1, **way)
        for name, way in ways
        for size in SIZES_BYTES
        for dtype in DTYPES
    )
    return probes.Sweep(**job(num_ranks) | {"transfers": transfers, "repeats": 2} | settings)


def test_results_are_right_and_looked_at(launcher, tmp_path):
    """At two ranks `calibrate` is tried."""
    first, *others = launcher.probe(sweep(NUM_RANKS), tmp_path)
    assert [record.sweep for record in others] == [()] * (NUM_RANKS - 1)
    found = first.sweep
    assert len(found) == (len(COLLECTIVES) + len(EITHER_PLACE)) * len(SIZES_BYTES) * len(DTYPES)
    for one in found:
        assert one.num_wrong == 0, one.transfer
        assert len(one.time_s) == 2 and min(one.time_s) > 0
        assert one.num_elements == looked_at(one, NUM_RANKS), one.transfer


def looked_at(one, num_ranks):
    """Elements of all results that ranks get: of two repeats, each with one operation before."""
    item = {"float32": 4, "bfloat16": 2, "int8": 1}[one.transfer.dtype]
    per_rank = max(1, one.transfer.size_bytes // item // num_ranks)
    whole = per_rank * num_ranks
    if one.transfer.operation == "barrier":
        assert one.size_bytes == 0
        return 0
    assert one.size_bytes == whole * item
    everywhere = ("all_reduce", "all_gather", "all_to_all", "broadcast", "send_recv_ring")
    cuts = [whole * j * (j + 1) // (num_ranks * (num_ranks + 1)) for j in range(num_ranks + 1)]
    results = dict.fromkeys(everywhere, num_ranks * whole)
    results["all_to_all_uneven"] = num_ranks * cuts[-1]
    return 4 * results.get(one.transfer.operation, whole)


def test_a_sweep_without_time_times_what_a_fit_needs(launcher, tmp_path):
    """All ranks come to the same end, though each has a clock of its own."""
    sizes = (1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16)
    transfers = tuple(
        probes.Transfer(operation=name, size_bytes=size)
        for name in ("all_reduce", "all_gather")
        for size in reversed(sizes)
    )
    plan = sweep(2, transfers=transfers, repeats=3, time_limit_s=1e-6)
    found = launcher.probe(plan, tmp_path)[0].sweep
    assert {one.transfer.operation for one in found} == {"all_reduce", "all_gather"}
    assert [one.size_bytes for one in found] == [*reversed(sizes[:3])] * 2
    assert all(len(one.time_s) == 1 and one.num_wrong == 0 for one in found)


def probed(launcher, folder, plan, **fault):
    """Probe with a fault, which is there for this once."""
    launcher.inject(probes.InjectedFault(**fault))
    try:
        return launcher.probe(plan, folder)
    finally:
        launcher.inject(None)


@cases("rank, count", (0, 1), (2, 13))
def test_wrong_elements_are_counted(launcher, tmp_path, rank, count):
    asked = tuple(
        probes.Transfer(operation=n, size_bytes=1000, back_to_back=1) for n in COLLECTIVES
    )
    fault = {"kind": "wrong_elements", "rank": rank, "count": count}
    found = probed(launcher, tmp_path, sweep(NUM_RANKS, transfers=asked), **fault)[0].sweep
    wrong = [one for one in found if one.num_wrong]
    assert [(one.transfer.operation, one.num_wrong) for one in wrong] == [("all_reduce", count)]


@pytest.mark.timed
def test_a_false_clock_is_found_within_its_bound(launcher, tmp_path):
    plan = probes.ClockCheck(**job(2))
    records = probed(launcher, tmp_path, plan, kind="false_clock", rank=1, seconds=1.25)
    clocks = [record.clock for record in records]
    assert clocks[0].offset_ns == 0
    assert abs(clocks[1].offset_ns - 1.25e9) <= clocks[1].bound_ns < 20e6


def test_a_probe_that_cannot_be_done_says_why(launcher, tmp_path):
    to_nobody = probes.Transfer(operation="send_recv", size_bytes=4, peers=(0, 9))
    with pytest.raises(ProbeFailed, match=r"rank \d: "):
        launcher.probe(sweep(2, transfers=(to_nobody,), collective_timeout_s=2.0), tmp_path)


def test_ranks_play_steps_without_their_models(launcher, tmp_path):
    """A step is at least as long as the passes that a rank does one after the other."""
    stage = probes.RehearsedStage(forward_s=0.002, backward_s=0.004, output_bytes=1000)
    pipelines = tuple(
        probes.PipelineRehearsal(schedule=name, microbatches=4, stages=(stage,) * num_stages)
        for name, num_stages in (("gpipe", 2), ("1f1b", 2), ("interleaved-1f1b", 4))
    )
    hidden = probes.RehearsedOperation(
        op="all_reduce", size_bytes=1000, ready_s=0.002, needed_s=0.01
    )
    bare = [
        probes.RehearsedOperation(op=name, size_bytes=100_000, ready_s=0.01, needed_s=0.01)
        for name in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv_ring")
    ]
    step = probes.StepRehearsal(computing_s=0.02, operations=(hidden, *bare))
    in_group = [one.model_copy(update={"groups": ((1, 0),)}) for one in bare]
    waiting = {"computing_s": 0.02, "computing_cpu_s": 0.002, "blocks": 1, "num_steps": 3}
    often_waiting = probes.StepRehearsal(**waiting, operations=(hidden, *in_group))
    plan = probes.Rehearsal(
        **job(2), pipelines=pipelines, steps=(step, often_waiting), blocks=2, num_steps=2
    )
    first, second = launcher.probe(plan, tmp_path)
    assert second.played is None and first.played is not None
    assert [len(steps) for steps in first.played.pipelines] == [4, 4, 4]
    for steps, busy_s in zip(first.played.pipelines, (0.024, 0.024, 0.048), strict=True):
        assert min(steps) > busy_s / 4  # a machine that others use is slower, hardly ever faster
    exposed, often_exposed = first.played.exposed
    assert len(exposed) == 4 and min(exposed) > 0
    assert len(often_exposed) == 3 and min(often_exposed) > 0
