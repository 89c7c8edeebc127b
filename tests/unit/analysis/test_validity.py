"""Stamps: each appears for its cause, at its limit, and for nothing else."""

import os

import pynvml
import pytest

from scalebench.analysis.unmeasured import unmeasured_cases
from scalebench.analysis.validity import validity_stamps
from scalebench.records.rank import Memory
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Tensor
from tests.builders.runs import make_cell
from tests.builders.watched import A, B, make_host, make_twin, sample, watched

OURS = {"pid": os.getpid(), "usedGpuMemory": 1 << 30}
OTHER = {"pid": 1, "usedGpuMemory": 1 << 30}


def launch(host=None, **answers):
    """A watched launch; ``answers`` are NVML's, ``host`` what the processors did."""
    node = sample(make_twin(**answers))[0]
    return watched(node.model_copy(update={"host": host or make_host()}))


def stamps(row, baseline=()):
    return validity_stamps([row], list(baseline))


def held_for(readings, bits, first=10):
    """Throttle bits that held for some readings from the first of the clean window (1 s) on."""
    times = [i / 10 for i in range(71)]
    row = [bits if first <= i < first + readings else 0 for i in range(71)]
    return {"time_s": times, "answer": row}


def with_series(series):
    twin = make_twin()
    for device in twin.devices:
        device["calls"]["nvmlDeviceGetCurrentClocksEventReasons"] = series
    return watched(sample(twin)[0])


def test_a_quiet_machine_gets_no_stamp():
    assert stamps(launch(), [launch()]) == []


@pytest.mark.parametrize(
    ("bits", "reason"),
    [
        *((0x004, "power cap"), (0x008, "hardware slowdown")),
        *((0x020, "software thermal slowdown"), (0x040, "hardware thermal slowdown")),
        (0x080, "hardware power brake"),
    ],
)
def test_what_slows_a_device_down_is_named(bits, reason):
    found = stamps(launch(nvmlDeviceGetCurrentClocksEventReasons=bits))
    assert found == [f"throttled: {reason} in 100 % of the readings"]


@pytest.mark.parametrize(
    ("row", "baseline", "throttled"),
    [
        (0x004, 0x004, False),
        (0x004, 0, True),
        (0x008, 0x008, True),
        (0x044, 0x004, True),
    ],
)
def test_the_power_cap_disturbs_only_where_the_baseline_was_not_at_its_own(
    row, baseline, throttled
):
    def at(bits):
        return launch(nvmlDeviceGetCurrentClocksEventReasons=bits)

    found = stamps(at(row), [at(baseline)])
    assert bool(found) is throttled
    assert ("power cap" in str(found)) is (row == 0x004 and baseline == 0)


@pytest.mark.parametrize("bits", [0x001, 0x002, 0x010, 0x100, 0x200, 0x400, 0x8000])
def test_what_was_asked_for_or_is_not_known_is_no_throttling(bits):
    assert stamps(launch(nvmlDeviceGetCurrentClocksEventReasons=bits)) == []


@pytest.mark.parametrize(("readings", "stamped"), [(2, False), (3, True)])
def test_a_moment_of_throttling_is_forgiven(readings, stamped):
    """The window of 4 s has 41 readings; 5 % of them are 2.05."""
    assert bool(stamps(with_series(held_for(readings, 0x008)))) is stamped


@pytest.mark.parametrize(
    ("mhz", "stamped"), [(1980, False), (1941, False), (1940, True), (2020, True), (2019, False)]
)
def test_clocks_may_differ_by_two_percent(mhz, stamped):
    found = stamps(launch(**{"nvmlDeviceGetClockInfo[1]": mhz}), [launch()])
    wanted = [f"clocks differ: {mhz} MHz, the baseline's 1980 MHz"] if stamped else []
    assert found == wanted


def test_one_slow_device_among_fast_ones_is_seen():
    twin = make_twin()
    twin.devices[1]["calls"]["nvmlDeviceGetClockInfo[1]"]["answer"] = [1410]
    row = watched(sample(twin)[0])
    baseline = watched(sample(make_twin())[0], uuids=[A])
    assert stamps(row, [baseline]) == ["clocks differ: 1410 MHz, the baseline's 1980 MHz"]


@pytest.mark.parametrize(("stolen_s", "stamped"), [(0.2, False), (0.21, True), (1.0, True)])
def test_stolen_time_counts_from_one_percent_on(stolen_s, stamped):
    """Two processors for ten seconds: 1 % is 0.2 s."""
    found = stamps(launch(make_host(steal_cpu_s=stolen_s)))
    assert bool(found) is stamped
    if stolen_s == 1.0:
        assert found == ["foreign load: 5.00 % of the processors' time stolen"]


@pytest.mark.parametrize(("foreign_s", "stamped"), [(1.0, False), (1.1, True), (8.0, True)])
def test_others_may_take_a_tenth_of_a_processor(foreign_s, stamped):
    found = stamps(launch(make_host(busy_cpu_s=10.0 + foreign_s, job_cpu_s=10.0)))
    assert bool(found) is stamped
    if foreign_s == 8.0:
        assert found == ["foreign load: 0.8 processors busy with other programs"]


def test_another_program_on_a_gpu_is_foreign_load():
    row = launch(nvmlDeviceGetComputeRunningProcesses=[OURS, OTHER, OTHER])
    assert stamps(row) == ["foreign load: 2 other program(s) on a GPU"]
    assert stamps(launch(nvmlDeviceGetComputeRunningProcesses=[OURS])) == []


def test_another_program_on_an_idle_gpu_is_none_of_ours():
    twin = make_twin()
    key = "nvmlDeviceGetComputeRunningProcesses"
    twin.devices[1]["calls"][key]["answer"] = [[OURS, OTHER]]
    node = sample(twin)[0]
    assert stamps(watched(node, uuids=[A])) == []
    assert stamps(watched(node, uuids=[B])) != []


@pytest.mark.parametrize(("field", "number"), [("swap_in_bytes", 4096), ("swap_out_bytes", 8192)])
def test_swapping_is_stamped(field, number):
    found = stamps(launch(make_host(**{field: number})))
    assert found == [f"swap: {number / 1000:.2f} kB read or written"]


class RetriedMemory(Memory):
    """The memory of a rank as a version that counts retries writes it."""

    allocator_retries: int | None = None


@pytest.mark.parametrize(
    ("retries", "found"), [(0, []), (None, []), (3, ["allocator retries: 3 on a rank"])]
)
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


def test_the_gravest_comes_first():
    row = launch(
        make_host(steal_cpu_s=2.0, swap_in_bytes=4096), nvmlDeviceGetCurrentClocksEventReasons=0x40
    )
    assert [stamp.partition(":")[0] for stamp in stamps(row)] == [
        "throttled",
        "foreign load",
        "swap",
    ]


STRATEGIES = {"ddp": Ddp(), "tensor": Tensor(), "acc": Accelerate(), "deep": DeepSpeed()}
NOT_REACHED = "not run: the run is over budget"


class Row:
    """Stands for a summary's row, which has only these of a plan's."""

    suite = "s"

    def __init__(self, case: str, status: str, reason: str | None) -> None:
        self.case, self.status, self.reason = case, status, reason
        self.strategy = STRATEGIES[case].kind


@pytest.mark.parametrize(
    ("rows", "unmeasured"),
    [
        ({"ddp": (None, None)}, []),
        ({"ddp": (None, "too few GPUs")}, []),
        ({"ddp": (None, None), "tensor": ("no plan", "no plan")}, ["s: tensor"]),
        ({"deep": ("not installed",), "acc": (None,)}, []),
        ({"ddp": (None,), "deep": ("none",), "acc": ("none",)}, ["s: other frameworks"]),
        ({}, []),
    ],
)
def test_of_a_plan_and_of_a_run(rows, unmeasured):
    told = [(case, why) for case, reasons in rows.items() for why in reasons]
    ran = [Row(case, "skipped" if why else "ok", why) for case, why in told]
    assert unmeasured_cases(ran) == unmeasured
    planned = [
        make_cell(case, suite="s", strategy=STRATEGIES[case], skip_reason=w) for case, w in told
    ]
    assert unmeasured_cases(planned) == unmeasured


@pytest.mark.parametrize(
    ("status", "reason"), [("failed", "why"), ("oom", "why"), ("skipped", NOT_REACHED)]
)
def test_what_failed_or_was_not_reached_was_not_skipped(status, reason):
    assert unmeasured_cases([Row("ddp", status, reason)]) == []
