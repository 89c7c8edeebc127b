"""Numbers of a Kineto file at their limits: times, threads, ranks, groups."""

import json

import pytest

from scalebench.trace.kineto import nanoseconds, read_kineto

OP = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "tid": 4, "ts": 5, "dur": 2}


@pytest.fixture
def read(tmp_path):
    def events_of(*rows, **about):
        path = tmp_path / "trace.json"
        path.write_text(json.dumps({"traceEvents": list(rows), **about}))
        return read_kineto(path)

    return events_of


@pytest.mark.parametrize(
    ("microseconds", "expected"),
    [
        ("4611686018427387.903", 2**62 - 1),
        ("4611686018427387.904", None),
        ("-4611686018427387.903", -(2**62) + 1),
        ("-4611686018427387.904", None),
        ("1.5", 1500),
        ("12.3456", 12_346),
        ("0.001", 1),
        ("1.e3", 1_000_000),
        ("-2.125", -2125),
        ("..125", None),
        (True, None),
    ],
)
def test_times_up_to_the_largest(microseconds, expected):
    assert nanoseconds(microseconds) == expected


def test_numbers_up_to_the_largest(read):
    rows = [
        {**OP, "args": {"correlation": number}}
        for number in (0, 2**62 - 1, 2**62, str(2**62 - 1), -3, "x", 1.5)
    ]
    assert read(*rows).correlation.tolist() == [0, 2**62 - 1, -1, 2**62 - 1, -1, -1, -1]


def test_threads_with_names_are_numbered_downwards_from_minus_two(read):
    tids = (0, "a", "b", "a", -7, "3", "c", "-7", None)
    found = read(*({**OP, "tid": tid} for tid in tids)).thread.tolist()
    assert found == [0, -2, -3, -2, -4, 3, -5, -4, -1]


@pytest.mark.parametrize(
    ("told", "rank", "world_size"),
    [
        ({"rank": 0, "world_size": 1}, 0, 1),
        ({"rank": "3", "world_size": "4"}, 3, 4),
        ({"rank": -1, "world_size": 0}, None, None),
        ({}, None, None),
        (None, None, None),
        ([1], None, None),
    ],
)
def test_a_job_as_far_as_it_is_told(read, told, rank, world_size):
    events = read(OP, distributedInfo=told)
    assert (events.rank, events.world_size) == (rank, world_size)


def test_groups_with_ranks_are_listed(read):
    listed = [
        {"pg_name": "0", "pg_size": 4},
        {"pg_name": 1, "pg_size": "1"},
        {"pg_name": "2", "pg_size": 0},
        {"pg_name": "3", "pg_size": -1},
        {"pg_name": "4"},
        "no group",
        None,
    ]
    assert read(OP, distributedInfo={"pg_config": listed}).groups == {"0": 4, "1": 1}
    assert read(OP, distributedInfo={"pg_config": {"pg_size": 4}}).groups == {}


@pytest.mark.parametrize(("base", "offset"), [(7, 5007), ("7", 5007), (-7, 5000), (None, 5000)])
def test_time_begins_with_the_first_event(read, base, offset):
    later = {**OP, "ts": 9.5, "dur": 0.25}
    events = read(later, OP, baseTimeNanoseconds=base)
    assert events.start_ns.tolist() == [4500, 0]
    assert events.end_ns.tolist() == [4750, 2000]
    assert events.clock_offset_ns == offset


def test_only_complete_events_and_halves_count(read):
    rows = [
        OP,
        {**OP, "ph": "i"},
        {k: v for k, v in OP.items() if k not in ("ph", "dur")},
        {**OP, "ph": "B", "ts": 10},
        {**OP, "ph": "E", "ts": 13.125},
        {**OP, "ph": "X", "dur": "soon", "ts": 20},
        {**OP, "ph": "X", "dur": "-5", "ts": 30},
    ]
    events = read(*rows)
    spans = list(zip(events.start_ns.tolist(), events.end_ns.tolist(), strict=True))
    assert spans == [(0, 2000), (5000, 8125)]
    assert events.num_left_out == 2


def test_names_categories_and_details_of_each_event(read):
    rows = [
        {**OP, "name": "aten::mm", "args": {"External id": 1}},
        {**OP, "name": "c10d::send", "args": {"External id": 2}},
        {**OP, "name": 5, "cat": "kernel"},
        {**OP, "name": "c10d::send", "args": "none"},
    ]
    events = read(*rows)
    assert [events.names[code] for code in events.name] == [
        "aten::mm",
        "c10d::send",
        "5",
        "c10d::send",
    ]
    assert events.of("cpu_op").tolist() == [0, 1, 3] and events.of("kernel").tolist() == [2]
    assert events.details == {1: {"External id": 2}, 3: {}}
