"""Stamps: each appears for its cause, at its limit, and for nothing else."""

import os

import pynvml

from scalebench.analysis.validity import unmeasured_cases, validity_stamps
from scalebench.records.measured.rank import Memory
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Tensor
from tests.builders.runs import make_cell
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


class Row:
    """Stands for a summary's row, which has only these of a plan's."""

    suite = "s"

    def __init__(self, case, status, reason):
        self.case, self.status, self.reason = case, status, reason
        self.strategy = STRATEGIES[case].kind


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
    ran = [Row(case, "skipped" if why else "ok", why) for case, why in told]
    assert unmeasured_cases(ran) == unmeasured
    planned = [
        make_cell(case, suite="s", strategy=STRATEGIES[case], skip_reason=w) for case, w in told
    ]
    assert unmeasured_cases(planned) == unmeasured


@cases("status, reason", ("failed", "why"), ("oom", "why"), ("skipped", NOT_REACHED))
def test_what_failed_or_was_not_reached_was_not_skipped(status, reason):
    assert unmeasured_cases([Row("ddp", status, reason)]) == []
