"""Energy from single readings of a counter or of power, by hand."""

import pytest

from scalebench.analysis.energy import _bracketing, _counted, _integrated, energy_per_sample
from scalebench.analysis.windows import Window
from scalebench.records.telemetry import DeviceStates, DeviceTrack, NodeTrack
from tests.builders.watched import BEGIN_NS, A, B, watched

START = 7_000_000_000_000_000_000
"""Nanoseconds so many that a float would round them by hundreds."""


def at(*seconds):
    return [START + round(s * 1e9) for s in seconds]


def window(begin=1.0, end=3.0, num_steps=4):
    return Window(*at(begin, end), num_steps)


def test_readings_around_a_window_are_the_last_before_it_and_the_first_after_it():
    times, values = _bracketing(
        at(0.2, 0.7, 1.2, 2.0, 2.9, 3.1, 3.6), [1, 2, 3, 4, 5, 6, 7], window()
    )
    assert times.tolist() == pytest.approx([-0.3, 0.2, 1.0, 1.9, 2.1])
    assert values.tolist() == [2, 3, 4, 5, 6]


def test_readings_at_the_ends_of_a_window_are_enough():
    times, values = _bracketing(at(1.0, 2.0, 3.0), [5, 7, 9], window())
    assert (times.tolist(), values.tolist()) == ([0, 1, 2], [5, 7, 9])
    times, values = _bracketing(at(0.0, 1.0, 2.0, 3.0, 4.0), [3, 5, 7, 9, 11], window())
    assert (times.tolist(), values.tolist()) == ([0, 1, 2], [5, 7, 9])


@pytest.mark.parametrize("seconds", [(1.1, 2.0, 3.0), (1.0, 2.0, 2.9), (3.5,), (0.5,)])
def test_readings_have_to_cover_the_whole_window(seconds):
    told = _bracketing(at(*seconds), [5] * len(seconds), window())
    assert told == "the readings do not cover the whole window"


@pytest.mark.parametrize(("second", "known"), [(2.0, True), (2.01, False), (1.99, False)])
def test_a_second_may_pass_between_two_readings(second, known):
    """From 1 to 3 s with one in between: one of the pauses is longer than a second or none is."""
    found = _bracketing(at(1.0, second, 3.0), [5, 6, 7], window())
    told = "there was no reading for more than 1 s of the window"
    assert (found != told) if known else (found == told)


def test_what_could_not_be_read_is_left_out():
    seconds = at(0.5, 1.0, 1.5, 2.0, 3.0, 3.5)
    times, values = _bracketing(seconds, [None, 5, None, 6, 7], window())
    assert (times.tolist(), values.tolist()) == ([0, 1, 2], [5, 6, 7])
    assert _bracketing(at(1.0, 2.0, 3.0), [None, None, None], window()) == "not read"
    assert _bracketing(at(1.0, 2.0, 3.0), [], window()) == "not read"


def counter(num_changes, by=30.0, first=100.0):
    """A reading every 0.2 s from 1 to 3 s; the counter moves between the first so many."""
    return [first + by * min(i, num_changes) for i in range(11)]


EVERY_FIFTH = at(*(1 + 0.2 * i for i in range(11)))


def test_a_counter_has_to_move_ten_times():
    assert _counted(EVERY_FIFTH, counter(10), window()) == pytest.approx(300.0)
    told = "it changed 9 times in the window; 10 are needed"
    assert _counted(EVERY_FIFTH, counter(9), window()) == told


def test_of_a_counter_the_window_takes_its_part_of_the_readings_around_it():
    """20 J from 0.9 to 1.1 s, 30 J every 0.2 s until 2.9, and 50 J until 3.1."""
    times = at(0.9, *(1.1 + 0.2 * i for i in range(10)), 3.1)
    values = [80.0, *counter(9)[:10], 100.0 + 270 + 50]
    assert _counted(times, values, window()) == pytest.approx(10 + 270 + 25)


def test_a_counter_that_goes_back_is_not_believed():
    values = counter(10)
    values[4] = 0.0
    told = "it went backwards: the driver was reloaded"
    assert _counted(EVERY_FIFTH, values, window()) == told


def test_power_is_integrated_by_trapezoids_from_one_end_of_the_window_to_the_other():
    """150 W at the beginning and 350 W at the end lie on the lines between readings."""
    found = _integrated(at(0.5, 1.5, 2.5, 3.5), [100, 200, 400, 300], window())
    assert found == pytest.approx(0.5 * 175 + 1.0 * 300 + 0.5 * 375)
    found = _integrated(at(1.0, 1.5, 2.5, 3.0), [100, 200, 400, 300], window())
    assert found == pytest.approx(0.5 * 150 + 1.0 * 300 + 0.5 * 350)


def track(uuid, begin, end, power=None, joules=None):
    """Readings ten times a second; power and what the counter moves by each time."""
    number = round((end - begin) * 10) + 1
    times = [BEGIN_NS + round(begin * 1e9) + i * 100_000_000 for i in range(number)]
    return DeviceTrack(
        uuid=uuid,
        states=DeviceStates(
            time_ns=times,
            power_w=[] if power is None else [power] * number,
            energy_j=[] if joules is None else [joules * i for i in range(number)],
        ),
    )


def energy(*tracks, windows_s=((1.0, 4.0),)):
    uuids = [one.uuid for one in tracks]
    return energy_per_sample(watched(NodeTrack(devices=list(tracks)), windows_s, uuids))


@pytest.mark.parametrize("order", [1, -1])
def test_one_device_whose_power_was_integrated_makes_all_of_it_derived(order):
    """300 W by the counter and 500 W by power, for 3 s and ten steps of 32 samples."""
    tracks = [track(A, 0, 5, joules=30.0), track(B, 0, 5, power=500.0)][::order]
    found = energy(*tracks)
    assert found.j_per_sample == pytest.approx(800 * 3.0 / 320)
    assert (found.source, found.reason) == ("power", None)


def test_the_counter_is_taken_where_both_are_known():
    found = energy(track(A, 0, 5, joules=30.0, power=500.0))
    assert found.j_per_sample == pytest.approx(300 * 3.0 / 320)
    assert (found.source, found.reason) == ("counter", None)


def test_energy_and_samples_are_those_of_the_long_windows():
    """3 and 2 s of 300 W; the window of 1 s in between is too short."""
    windows_s = ((1.0, 4.0), (5.0, 6.0), (7.0, 9.0))
    found = energy(track(A, 0, 10, joules=30.0), windows_s=windows_s)
    assert found.j_per_sample == pytest.approx(300 * 5.0 / 640)


def test_the_longest_window_is_told_where_all_are_too_short():
    found = energy(track(A, 0, 10, joules=30.0), windows_s=((1.0, 2.0), (3.0, 4.5), (6.0, 6.5)))
    assert found.reason.startswith("the longest clean window is 1.5 s; energy needs 2 s")
    assert (found.j_per_sample, found.source) == (None, None)


def test_the_device_that_does_not_tell_is_named_with_both_reasons():
    found = energy(track(A, 0, 5, joules=30.0), track(B, 0, 3.9, joules=30.0))
    assert found.reason == (
        f"{B}: energy counter: the readings do not cover the whole window; power: not read"
    )
    assert (found.j_per_sample, found.source) == (None, None)


def test_what_is_told_of_a_null_in_the_record_comes_first():
    silent = track(A, 0, 5).model_copy(update={"unavailable": {"power_w": "not allowed"}})
    assert energy(silent).reason == f"{A}: energy counter: not read; power: not allowed"
