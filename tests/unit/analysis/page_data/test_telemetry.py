"""What the devices of a launch did, reading by reading."""

from scalebench.analysis.page_data.telemetry import Throttled, device_series_of
from scalebench.records.rank import Block
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from tests.builders.runs import make_cell, make_record, make_result

S = 1_000_000_000


def launch(*tracks, device="cuda", windows=((), ())):
    """Rank i is on the device of track i; its clean blocks lie between these seconds."""
    ranks = [
        make_record(
            rank,
            facts={"device_uuid": track.uuid},
            blocks=[
                Block(phase="clean", first=3 * i, count=3, start_ns=a * S, end_ns=b * S)
                for i, (a, b) in enumerate(windows[rank])
            ],
        )
        for rank, track in enumerate(tracks)
    ]
    cell = make_cell("ddp", len(tracks), device=device, backend="nccl", repeat=2)
    return make_result(cell, ranks=ranks, node=NodeTrack(devices=list(tracks)))


def track(uuid, seconds, name="A GPU", index=0, **columns):
    states = DeviceStates(time_ns=[round(t * S) for t in seconds], **columns)
    return DeviceTrack(uuid=uuid, name=name, index=index, states=states)


def test_every_field_of_two_devices():
    first = track(
        "GPU-a",
        (7, 8, 9.5),
        power_w=[100, None, 300],
        sm_clock_hz=[10, 20, 30],
        throttle_bits=[0, 4, 4],
    )
    second = track("GPU-b", (5, 11), name=None, index=None, temperature_c=[40, 60])
    windows = ([(6, 8), (10, 12)], [(7, 9), (9, 11)])
    found = device_series_of(launch(first, second, windows=windows))
    for one in found:
        assert (one.suite, one.case, one.world_size, one.repeat) == ("ddp", "ddp", 2, 2)
        assert one.windows == ((1.0, 7.0),)  # the clean blocks of both ranks follow at once
    assert [one.device for one in found] == ["0: A GPU", "?: GPU-b"]
    assert found[0].series == {
        "power_w": ((2.0, 100.0), (4.5, 300.0)),
        "sm_clock_hz": ((2.0, 10.0), (3.0, 20.0), (4.5, 30.0)),
    }
    assert found[1].series == {"temperature_c": ((0.0, 40.0), (6.0, 60.0))}
    assert found[0].throttled == (Throttled(3.0, 4.5, ("power cap",)),)
    assert found[1].throttled == ()


def test_windows_far_apart_are_several():
    windows = ([(6, 8), (12, 15)],)
    (one,) = device_series_of(launch(track("GPU-a", (5, 20), power_w=[1, 2]), windows=windows))
    assert one.windows == ((1.0, 3.0), (7.0, 10.0))


def test_a_device_that_was_never_read_is_left_out():
    read = track("GPU-a", (7, 8), power_w=[100, 200], index=1)
    (one,) = device_series_of(launch(read, track("GPU-b", ())))
    assert (one.device, one.series["power_w"]) == ("1: A GPU", ((0.0, 100.0), (1.0, 200.0)))
    assert device_series_of(launch(track("GPU-a", ()), track("GPU-b", ()))) == []
    assert device_series_of(launch(read, device="cpu", windows=((),))) == []


def throttled(*bits):
    read = track("GPU-a", range(3, 3 + len(bits)), power_w=[1] * len(bits), throttle_bits=bits)
    return list(device_series_of(launch(read))[0].throttled)


def test_a_stretch_ends_with_the_next_reading_and_the_last_one_where_it_was_read():
    cap, hot = ("power cap",), ("hardware thermal slowdown",)
    assert throttled(4) == [Throttled(0.0, 0.0, cap)]
    assert throttled(4, 0) == [Throttled(0.0, 1.0, cap)]
    assert throttled(0, 4, 4, 4) == [Throttled(1.0, 3.0, cap)]
    assert throttled(4, 4, 64, 64, 0) == [Throttled(0.0, 2.0, cap), Throttled(2.0, 4.0, hot)]
    assert throttled(4, 0, 4, 0) == [Throttled(0.0, 1.0, cap), Throttled(2.0, 3.0, cap)]
    assert throttled(4, None, 68) == [
        Throttled(0.0, 1.0, cap),
        Throttled(2.0, 2.0, (*cap, *hot)),
    ]
    # Idle, application clocks, sync boost and display clocks are no throttling.
    assert throttled(1, 2, 16, 256, 1 + 2 + 16 + 256) == []
    assert throttled(1 + 4, 4) == [Throttled(0.0, 1.0, cap)]


def test_a_long_series_is_drawn_by_the_extremes_of_150_stretches():
    """Up to 300 readings all are kept; of three in a stretch the middle one is left out."""
    for count in (300, 301, 450):
        values = [float(i) for i in range(count)]
        found = device_series_of(launch(track("GPU-a", range(count), power_w=values)))
        assert len(found[0].series["power_w"]) == 300
        assert found[0].series["power_w"][-1] == (count - 1.0, count - 1.0)
