import os
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.page_data import device_series_of
from scalebench.analysis.rank_steps import shrunk
from scalebench.analysis.rows.resources import energy_per_sample
from scalebench.analysis.validity import unmeasured_cases, validity_stamps
from scalebench.records.measured.rank import Memory
from scalebench.records.measured.trace import DeviceStates, DeviceTrack, NodeTrack
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Tensor
from tests.builders.runs import make_cell, make_record, make_result
from tests.builders.tracing.traced import MS
from tests.builders.watched import A, B, make_host, make_twin, sample, watched
from tests.examples import cases

OURS = {"pid": os.getpid(), "usedGpuMemory": 1 << 30}
OTHER = {"pid": 1, "usedGpuMemory": 1 << 30}
BITS = "nvmlDeviceGetCurrentClocksEventReasons"
CLOCK = "nvmlDeviceGetClockInfo[1]"
PROCESSES = "nvmlDeviceGetComputeRunningProcesses"
THROTTLING = {
    0x004: "power cap",
    0x008: "hardware slowdown",
    0x020: "software thermal slowdown",
    0x040: "hardware thermal slowdown",
    0x080: "hardware power brake",
}
ASKED_FOR = (0x001, 0x002, 0x010, 0x100, 0x200, 0x400, 0x8000)
"""Reasons that no device is slowed down by, or that are not known."""


def launch(host=None, **answers):
    """A watched launch; ``answers`` are NVML's, ``host`` what the processors did."""
    node = sample(make_twin(**answers))[0]
    return watched(node.model_copy(update={"host": host or make_host()}))


def stamps(row, baseline=()):
    return validity_stamps([row], list(baseline))


@cases(
    "host, answers, expected",
    *(
        ({}, {BITS: bits}, [f"throttled: {reason} in 100 % of the readings"])
        for bits, reason in THROTTLING.items()
    ),
    *(({}, {BITS: bits}, []) for bits in ASKED_FOR),
    *(({}, {CLOCK: mhz}, []) for mhz in (1980, 1941, 2019)),
    *(
        ({}, {CLOCK: mhz}, [f"clocks differ: {mhz} MHz, the baseline's 1980 MHz"])
        for mhz in (1940, 2020)
    ),
    ({"steal_cpu_s": 0.2}, {}, []),
    ({"steal_cpu_s": 0.21}, {}, ["foreign load: 1.05 % of the processors' time stolen"]),
    ({"busy_cpu_s": 11.0, "job_cpu_s": 10.0}, {}, []),
    (
        {"busy_cpu_s": 18.0, "job_cpu_s": 10.0},
        {},
        ["foreign load: 0.8 processors busy with other programs"],
    ),
    ({}, {PROCESSES: [OURS]}, []),
    ({}, {PROCESSES: [OURS, OTHER, OTHER]}, ["foreign load: 2 other program(s) on a GPU"]),
    ({"swap_in_bytes": 4096}, {}, ["swap: 4.10 kB read or written"]),
    ({"swap_out_bytes": 8192}, {}, ["swap: 8.19 kB read or written"]),
)
def test_each_stamp_has_its_cause(host, answers, expected):
    """Two processors for ten seconds; 1 % of their time, or a tenth of one, may be others'."""
    assert stamps(launch(make_host(**host), **answers), [launch()]) == expected


@cases(
    "row, baseline, throttled",
    (0x004, 0x004, False),
    (0x004, 0, True),
    (0x008, 0x008, True),
    (0x044, 0x004, True),
)
def test_the_power_cap_disturbs_only_where_the_baseline_was_not_at_its_own(
    row, baseline, throttled
):
    found = stamps(launch(**{BITS: row}), [launch(**{BITS: baseline})])
    assert bool(found) is throttled
    assert ("power cap" in str(found)) is (row == 0x004 and baseline == 0)


@cases("readings, stamped", (2, False), (3, True))
def test_a_moment_of_throttling_is_forgiven(readings, stamped):
    """The window of 4 s has 41 readings from 1 s on; 5 % of them are 2.05."""
    twin = make_twin()
    held = [0x008 if 10 <= i < 10 + readings else 0 for i in range(71)]
    for device in twin.devices:
        device["calls"][BITS] = {"time_s": [i / 10 for i in range(71)], "answer": held}
    assert bool(stamps(watched(sample(twin)[0]))) is stamped


def test_one_device_that_is_slow_or_shared_is_seen_where_it_is_used():
    twin = make_twin()
    twin.devices[1]["calls"][CLOCK]["answer"] = [1410]
    twin.devices[1]["calls"][PROCESSES]["answer"] = [[OURS, OTHER]]
    node = sample(twin)[0]
    baseline = watched(sample(make_twin())[0], uuids=[A])
    assert stamps(watched(node, uuids=[A]), [baseline]) == []
    assert stamps(watched(node, uuids=[B]), [baseline]) == [
        "clocks differ: 1410 MHz, the baseline's 1980 MHz",
        "foreign load: 1 other program(s) on a GPU",
    ]


class RetriedMemory(Memory):
    """The memory of a rank as a version that counts retries writes it."""

    allocator_retries: int | None = None


@cases("retries, found", (0, []), (None, []), (3, ["allocator retries: 3 on a rank"]))
def test_allocator_retries_are_stamped(retries, found):
    row = launch()
    worst = row.ranks[1].model_copy(update={"memory": RetriedMemory(allocator_retries=retries)})
    assert stamps(row.model_copy(update={"ranks": [row.ranks[0], worst]})) == found


def test_what_was_not_watched_is_not_stamped():
    unread = make_host(
        num_processors=None, busy_cpu_s=None, steal_cpu_s=None, job_cpu_s=None,
        swap_in_bytes=None, swap_out_bytes=None,
    )  # fmt: skip
    assert stamps(watched(None)) == []
    assert stamps(launch(unread)) == []
    twin = make_twin()
    for name in ("ClockInfo", "CurrentClocksEventReasons"):
        twin.fail(f"nvmlDeviceGet{name}", pynvml.NVML_ERROR_NO_PERMISSION)
    assert stamps(watched(sample(twin)[0]), [launch()]) == []
    assert validity_stamps([], []) == []


STRATEGIES = {"ddp": Ddp(), "tensor": Tensor(), "acc": Accelerate(), "deep": DeepSpeed()}
NOT_REACHED = "not run: the run is over budget"


def row_of(case, status, reason):
    """Stands for a summary's row, which has only these of a plan's."""
    given = {"suite": "s", "strategy": STRATEGIES[case].kind}
    return SimpleNamespace(**given, case=case, status=status, reason=reason)


@cases(
    "rows, unmeasured",
    ({"ddp": (None, "too few GPUs")}, []),
    ({"ddp": (None, None), "tensor": ("no plan", "no plan")}, ["s: tensor"]),
    ({"deep": ("not installed",), "acc": (None,)}, []),
    ({"ddp": (None,), "deep": ("none",), "acc": ("none",)}, ["s: other frameworks"]),
    ({}, []),
)
def test_of_a_plan_and_of_a_run(rows, unmeasured):
    told = [(case, why) for case, reasons in rows.items() for why in reasons]
    ran = [row_of(case, "skipped" if why else "ok", why) for case, why in told]
    assert unmeasured_cases(ran) == unmeasured
    planned = [
        make_cell(case, suite="s", strategy=STRATEGIES[case], skip_reason=w) for case, w in told
    ]
    assert unmeasured_cases(planned) == unmeasured


@cases("status, reason", ("failed", "why"), ("oom", "why"), ("skipped", NOT_REACHED))
def test_what_failed_or_was_not_reached_was_not_skipped(status, reason):
    assert unmeasured_cases([row_of("ddp", status, reason)]) == []


SAMPLES = 10 * 32  # of one clean window


def watched_twin(twin=None, **kwargs):
    return watched(sample(twin or make_twin())[0], **kwargs)


def test_the_energy_of_a_known_constant_power_is_exact():
    energy = energy_per_sample(watched_twin())
    assert energy.j_per_sample == pytest.approx((300 + 450) * 4.0 / SAMPLES, rel=1e-9)
    assert (energy.source, energy.reason) == ("counter", None)


def test_without_a_counter_power_is_integrated_and_that_is_said():
    twin = make_twin()
    twin.fail("nvmlDeviceGetTotalEnergyConsumption", pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    energy = energy_per_sample(watched_twin(twin))
    assert energy.j_per_sample == pytest.approx(750 * 4.0 / SAMPLES, rel=1e-9)
    assert energy.source == "power"


def test_a_counter_that_was_reset_is_not_believed():
    result = watched_twin(uuids=[A])
    result.node.devices[0].states.energy_j[30:] = [30.0 * i for i in range(41)]
    energy = energy_per_sample(result)
    assert energy.source == "power"
    assert energy.j_per_sample == pytest.approx(300 * 4.0 / SAMPLES, rel=1e-9)


def test_readings_that_end_too_early_do_not_count_as_less_energy():
    node, _ = sample(make_twin(), until_s=4.0)
    energy = energy_per_sample(watched(node))
    assert energy.j_per_sample is None
    assert "do not cover the whole window" in energy.reason


@cases("length_s, measurable", (1.99, False), (2.0, True))
def test_windows_under_two_seconds_are_refused(length_s, measurable):
    energy = energy_per_sample(watched_twin(windows_s=[(1.0, 1.0 + length_s)]))
    assert (energy.j_per_sample is not None) is measurable
    assert ("energy needs 2 s" in (energy.reason or "")) is not measurable


def test_every_null_has_a_reason():
    cpu = make_result(make_cell("ddp", 2), node=sample(make_twin())[0])
    assert energy_per_sample(cpu).reason == "the ranks ran on the CPU"
    assert energy_per_sample(watched(None)).reason == "the node was not watched"
    strange = watched_twin(uuids=["cccc"])
    assert energy_per_sample(strange).reason == "device cccc was not sampled"
    untimed = watched_twin()
    ranks = [r.model_copy(update={"blocks": [r.blocks[0].model_copy(update={"end_ns": None})]})
             for r in untimed.ranks]  # fmt: skip
    assert "of the warm-up" in energy_per_sample(untimed.model_copy(update={"ranks": ranks})).reason
    silent = [r.model_copy(update={"facts": {}}) for r in untimed.ranks]
    assert "which device" in energy_per_sample(untimed.model_copy(update={"ranks": silent})).reason
    twin = make_twin()
    for name in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetPowerUsage"):
        twin.fail(name, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
    reason = energy_per_sample(watched_twin(twin)).reason
    assert A in reason and reason.count("Function Not Found") == 2


grids = st.tuples(st.integers(1, 40), st.integers(1, 60), st.integers(1, 12), st.integers(1, 20))


@given(grids, st.randoms(use_true_random=False))
def test_a_smaller_grid_keeps_what_sticks_out(shape, random):
    rows, columns, most_rows, most_columns = shape
    grid = np.array([[random.uniform(-1, 1) for _ in range(columns)] for _ in range(rows)])
    peak = (random.randrange(rows), random.randrange(columns))
    grid[peak] = 7.0
    small, first_rows, first_columns = shrunk(grid, most_rows, most_columns)
    assert small.shape == (len(first_rows), len(first_columns))
    assert small.shape[0] <= most_rows and small.shape[1] <= most_columns
    place = (
        np.searchsorted(first_rows, peak[0], "right") - 1,
        (np.searchsorted(first_columns, peak[1], "right") - 1),
    )
    assert small[place] == 7.0 and (small == 7.0).sum() == 1


def test_a_device_is_throttled_where_a_reason_that_throttles_was_read():
    states = DeviceStates(
        time_ns=[i * 1000 * MS for i in range(5)],
        power_w=[100.0, 300.0, None, 310.0, 120.0],
        sm_clock_hz=[1_900_000_000] * 5,
        throttle_bits=[0, 4, 4, 0, 1],
    )
    track = DeviceTrack(uuid="GPU-1", name="A GPU", index=0, states=states)
    cell = make_cell("ddp", 1, device="cuda", backend="nccl")
    record = make_record(facts={"device_uuid": "GPU-1"})
    launch = make_result(cell, ranks=[record], node=NodeTrack(devices=[track]))
    (found,) = device_series_of(launch)
    assert [(t.start_s, t.end_s, t.reasons) for t in found.throttled] == [
        (1.0, 3.0, ("power cap",))
    ]
    assert found.series["power_w"] == ((0.0, 100.0), (1.0, 300.0), (3.0, 310.0), (4.0, 120.0))
    assert set(found.series) == {"power_w", "sm_clock_hz"}
