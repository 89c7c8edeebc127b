"""When the clean steps ran, and on which devices."""

import pytest

from scalebench.analysis.windows import MERGED_GAP_NS, Window, clean_windows, used_devices
from scalebench.records.rank import Block
from scalebench.records.telemetry import DeviceTrack, NodeTrack
from tests.builders.runs import make_cell, make_record, make_result

GAP = 100_000_000
"""A tenth of a second."""


def launch(*of_ranks, **changes):
    """Blocks of every rank: phase, start and end in nanoseconds, steps."""
    records = [
        make_record(
            rank,
            blocks=[
                Block(phase=phase, first=10 * i, count=count, start_ns=start, end_ns=end)
                for i, (phase, start, end, count) in enumerate(blocks)
            ],
        )
        for rank, blocks in enumerate(of_ranks)
    ]
    return make_result(make_cell("ddp", max(len(of_ranks), 1)), ranks=records, **changes)


def windows(*of_ranks):
    return clean_windows(launch(*of_ranks))


def test_a_window_lasts_from_the_first_rank_that_begins_to_the_last_that_ends():
    ranks = [[("clean", start, end, 7)] for start, end in ((30, 900), (10, 500), (20, 700))]
    assert windows(*ranks) == [Window(10, 900, 7)]


@pytest.mark.parametrize(
    ("pause", "merged"), [(0, True), (1, True), (GAP, True), (GAP + 1, False), (-1, False)]
)
def test_blocks_with_a_tenth_of_a_second_between_them_are_one_window(pause, merged):
    assert MERGED_GAP_NS == GAP
    begin = 2000 + pause
    found = windows([("clean", 1000, 2000, 3), ("clean", begin, begin + 500, 5)])
    apart = [Window(1000, 2000, 3), Window(begin, begin + 500, 5)]
    assert found == ([Window(1000, begin + 500, 8)] if merged else apart)


def test_three_blocks_in_succession_are_one_window_and_what_comes_later_is_another():
    late = 3 * GAP
    found = windows(
        [
            ("clean", 0, 10, 2),
            ("clean", 20, 30, 3),
            ("clean", 40, 50, 4),
            ("clean", late, late + 5, 6),
        ]
    )
    assert found == [Window(0, 50, 9), Window(late, late + 5, 6)]


def test_a_block_is_put_to_the_window_before_it_and_to_no_earlier_one():
    late = 3 * GAP
    blocks = [("clean", at, at + 5, count) for at, count in ((0, 2), (late, 3), (late + 9, 4))]
    found = windows([*blocks, ("clean", 2 * late, 2 * late + 7, 5)])
    assert found == [
        Window(0, 5, 2), Window(late, late + 14, 7), Window(2 * late, 2 * late + 7, 5)
    ]  # fmt: skip


def test_what_is_not_clean_on_all_ranks_or_was_not_timed_is_left_out():
    first = [("warmup", 0, 10, 1), ("clean", 10, 20, 2), ("clean", 30, 40, 3), ("clean", 50, 60, 4)]
    for missing in (("clean", None, 40, 3), ("clean", 30, None, 3), ("paired", 30, 40, 3)):
        second = [first[0], first[1], missing, first[3]]
        assert windows(first, second) == [Window(10, 60, 6)]
    assert windows(first, first[:2]) == [Window(10, 20, 2)], "blocks that all ranks have"
    assert windows([("traced", 0, 10, 1)]) == []


def test_the_length_of_a_window_is_in_seconds():
    assert Window(500_000_000, 3_000_000_000, 1).length_s == 2.5


def used(uuids, tracks, unavailable=None, device="cuda"):
    cell = make_cell("ddp", max(len(uuids), 1), device=device, backend="nccl")
    ranks = [
        make_record(rank, facts={} if uuid is None else {"device_uuid": uuid})
        for rank, uuid in enumerate(uuids)
    ]
    devices = [DeviceTrack(uuid=uuid) for uuid in tracks]
    node = NodeTrack(devices=devices, unavailable=unavailable or {})
    found = used_devices(make_result(cell, ranks=ranks, node=node))
    return found if isinstance(found, str) else [track.uuid for track in found]


def test_devices_are_found_by_their_uuid_each_once_in_the_order_of_the_ranks():
    tracks = ["GPU-AA", "GPU-bb", "MIG-cc"]
    assert used(["bb", "aa"], tracks) == ["GPU-bb", "GPU-AA"]
    assert used(["cc", "MIG-CC", "GPU-bb"], tracks) == ["MIG-cc", "GPU-bb"]


def test_why_devices_are_not_known():
    tracks = ["GPU-aa", "GPU-bb"]
    assert used(["aa", None], tracks) == "a rank did not say which device it used"
    assert used(["aa"], tracks, device="cpu") == "the ranks ran on the CPU"
    assert used(["dd", "aa", "ee"], tracks) == "device dd, ee was not sampled"
    assert used(["dd"], [], {"devices": "no NVML"}) == "no NVML"
    assert used([], tracks) == "device unknown was not sampled"
    assert used(["aa"], tracks, {"host": "not read"}) == ["GPU-aa"]
    alone = launch([("clean", 0, 1, 1)], node=None)
    assert used_devices(alone) == "the node was not watched"
