"""Limits of stamps at their edge, and which device, rank or launch they tell of."""

import pytest

from scalebench.analysis.validity import validity_stamps
from scalebench.records.rank import Memory
from scalebench.records.telemetry import DeviceStates, DeviceTrack, DeviceTraffic, NodeTrack
from tests.builders.watched import BEGIN_NS, A, B, make_host, watched

SLOWDOWN, POWER_CAP = 0x008, 0x004


def times(seconds):
    return [BEGIN_NS + round(s * 1e9) for s in seconds]


def device(uuid=A, bits=None, hertz=None, foreign=None, seconds=None):
    """Readings once a second from 1 s on, unless said otherwise."""
    columns = {"throttle_bits": bits or [], "sm_clock_hz": hertz or []}
    number = max(map(len, columns.values()))
    columns = {name: values or [None] * number for name, values in columns.items()}
    seconds = [1.0 + i for i in range(number)] if seconds is None else seconds
    states = DeviceStates(time_ns=times(seconds), **columns)
    traffic = DeviceTraffic(
        time_ns=times([1.0] * len(foreign or [])), foreign_processes=foreign or []
    )
    return DeviceTrack(uuid=uuid, states=states, traffic=traffic)


def launch(*devices, host=None, end=200.0, windows_s=None):
    node = NodeTrack(devices=list(devices), host=host)
    uuids = [one.uuid for one in devices] or [A]
    return watched(node, windows_s or ((1.0, end),), uuids)


def stamps(*launches, baseline=()):
    return validity_stamps(launches, list(baseline))


def held(number, of, bits=SLOWDOWN):
    return [bits] * number + [0] * (of - number)


@pytest.mark.parametrize(
    ("number", "of", "share"),
    [(5, 100, None), (6, 100, "6.00 %"), (1, 10, None), (2, 10, "20.0 %"), (2, 2, "100 %")],
)
def test_a_device_may_be_held_back_in_a_twentieth_of_the_readings_and_in_one(number, of, share):
    found = stamps(launch(device(bits=held(number, of))))
    assert found == ([f"throttled: hardware slowdown in {share} of the readings"] if share else [])


@pytest.mark.parametrize("order", [1, -1])
def test_the_share_is_that_of_the_worst_device_of_the_worst_launch(order):
    launches = [
        launch(device(A, held(3, 10)), device(B, held(6, 10))),
        launch(device(A, held(4, 10)), device(B, held(2, 10))),
    ][::order]
    assert stamps(*launches) == ["throttled: hardware slowdown in 60.0 % of the readings"]


def test_reasons_come_by_their_share_and_then_by_name():
    bits = [POWER_CAP | 0x040, POWER_CAP | 0x020, 0x060, POWER_CAP]
    (found,) = stamps(launch(device(bits=bits)))
    assert found == (
        "throttled: power cap in 75.0 % of the readings, hardware thermal slowdown in 50.0 % of "
        "the readings, software thermal slowdown in 50.0 % of the readings"
    )


def test_readings_at_the_ends_of_a_window_count_and_those_beside_it_do_not():
    """Windows from 2 to 3 and from 5 to 6 s; of four readings in them two are slowed down."""
    seconds = [1.999, 2.0, 3.0, 3.001, 4.999, 5.0, 6.0, 6.001]
    bits = [SLOWDOWN, SLOWDOWN, 0, SLOWDOWN, SLOWDOWN, 0, SLOWDOWN, SLOWDOWN]
    row = launch(device(bits=bits, seconds=seconds), windows_s=((2.0, 3.0), (5.0, 6.0)))
    assert stamps(row) == ["throttled: hardware slowdown in 50.0 % of the readings"]


def test_readings_that_failed_are_no_readings():
    row = launch(device(bits=[None, SLOWDOWN, None, SLOWDOWN, 0]))
    assert stamps(row) == ["throttled: hardware slowdown in 66.7 % of the readings"]
    assert stamps(launch(device(bits=[None, None]))) == []


def clocks(*mhz):
    return [one * 1_000_000 for one in mhz]


@pytest.mark.parametrize(
    ("megahertz", "told"),
    [
        ((2000, 2040), None),
        ((1960, 2000), None),
        ((2000, 2041), 2041),
        ((2000, 1959), 1959),
        ((2100, 1850), 1850),
        ((2200, 1850), 2200),
    ],
)
def test_the_clock_that_is_furthest_from_the_baselines_is_told(megahertz, told):
    row = launch(*(device(u, hertz=clocks(m)) for u, m in zip((A, B), megahertz, strict=True)))
    base = launch(device(hertz=clocks(2000)))
    found = stamps(row, baseline=[base])
    assert found == ([f"clocks differ: {told} MHz, the baseline's 2000 MHz"] if told else [])


def test_clocks_are_the_medians_of_a_devices_readings_and_of_the_baselines_devices():
    row = launch(device(hertz=clocks(1000, 1500, 2600)))
    base = [
        launch(device(A, hertz=clocks(2000)), device(B, hertz=clocks(1900))),
        launch(device(A, hertz=clocks(2500, 2300))),
    ]
    assert stamps(row, baseline=base) == ["clocks differ: 1500 MHz, the baseline's 2000 MHz"]


def test_without_clocks_on_one_side_nothing_differs():
    row, silent = launch(device(hertz=clocks(1000))), launch(device(bits=[0]))
    assert stamps(row, baseline=[silent]) == [] and stamps(silent, baseline=[row]) == []


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ({"steal_cpu_s": 0.2}, None),
        ({"steal_cpu_s": 0.24}, "1.20 % of the processors' time stolen"),
        ({"busy_cpu_s": 16.0}, None),
        ({"busy_cpu_s": 16.5}, "0.1 processors busy with other programs"),
        ({"wall_s": 0.5, "busy_cpu_s": 15.125}, "0.2 processors busy with other programs"),
        ({"wall_s": 0.25, "busy_cpu_s": 15.0625}, None),
    ],
)
def test_foreign_load_at_its_limits(host, told):
    """One percent of two processors in ten seconds; a tenth of one processor; 0.1 s in all."""
    found = stamps(launch(host=make_host(**host)))
    assert found == ([f"foreign load: {told}"] if told else [])


def test_foreign_load_is_that_of_the_worst_launch_each_kind_for_itself():
    launches = [
        launch(device(foreign=[1, None, 2]), host=make_host(steal_cpu_s=1.0)),
        launch(device(A, foreign=[0]), device(B, foreign=[3]), host=make_host(busy_cpu_s=25.0)),
        launch(host=make_host(steal_cpu_s=0.5, busy_cpu_s=20.0)),
    ]
    for order in (launches, launches[::-1]):
        assert stamps(*order) == [
            "foreign load: 5.00 % of the processors' time stolen; 1.0 processors busy with other "
            "programs; 3 other program(s) on a GPU"
        ]


def test_one_other_program_on_a_gpu_is_enough():
    assert stamps(launch(device(foreign=[0, 1]))) == ["foreign load: 1 other program(s) on a GPU"]
    assert stamps(launch(device(foreign=[0, None]))) == []


def with_retries(*retries):
    row = watched(None, uuids=[A, B])
    ranks = [
        rank.model_copy(update={"memory": Memory(allocator_retries=number)})
        for rank, number in zip(row.ranks, retries, strict=True)
    ]
    return row.model_copy(update={"ranks": ranks})


def test_the_rank_that_retried_most_is_told():
    launches = [with_retries(2, 1), with_retries(None, 5), with_retries(4, 0)]
    assert stamps(*launches) == ["allocator retries: 5 on a rank"]
    assert stamps(with_retries(1, None)) == ["allocator retries: 1 on a rank"]
    assert stamps(with_retries(0, None)) == []


def swapped(read, written):
    return launch(host=make_host(swap_in_bytes=read, swap_out_bytes=written))


def test_what_was_read_and_written_is_added_and_the_worst_launch_told():
    launches = [swapped(3000, 1000), swapped(1000, 4500), swapped(None, 5200)]
    assert stamps(*launches) == ["swap: 5.50 kB read or written"]
    assert stamps(swapped(None, 5200)) == ["swap: 5.20 kB read or written"]
    assert stamps(swapped(1, None)) == ["swap: 1.00 B read or written"]
    assert stamps(swapped(None, 7)) == ["swap: 7.00 B read or written"]
    assert stamps(swapped(0, None)) == []
