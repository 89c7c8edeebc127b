"""The host's processors: numbers of a hand-made /proc, and a real process that is in the way."""

import os

import pytest

from scalebench.launch.monitor.node import HostWatch

JOB = 4000
LINES = {"cpu0": (0, 0, 0, 0, 0, 0, 0, 0), "cpu1": (0, 0, 0, 0, 0, 0, 0, 0)}


def write_proc(proc, cpus=LINES, job_ticks=(0, 0, 0, 0), own_ticks=(0, 0), swap=(0, 0)):
    """A /proc with two processors, this process, and a job whose name is hard to parse."""
    total = [sum(column) for column in zip(*cpus.values(), strict=True)]
    rows = {"cpu": [n + 1 for n in total], **cpus}
    text = "\n".join(f"{name} {' '.join(map(str, row))} 0 0" for name, row in rows.items())
    (proc / "stat").write_text(f"{text}\nintr 5\n")
    (proc / "vmstat").write_text(f"nr_free 1\npswpin {swap[0]}\npswpout {swap[1]}\n")
    for pid, ticks in ((os.getpid(), (*own_ticks, 900, 900)), (JOB, job_ticks)):
        (proc / str(pid)).mkdir(exist_ok=True)
        fields = ["S", "1", *["0"] * 9, *map(str, ticks), *["0"] * 20]
        (proc / str(pid) / "stat").write_text(f"{pid} (a) job (x) {' '.join(fields)}\n")


def watch(proc, processors=(0, 1)):
    write_proc(proc)
    return HostWatch([JOB], proc, processors)


def test_loads_are_differences_in_seconds(tmp_path):
    begun = watch(tmp_path)
    # user nice system idle iowait irq softirq steal, ticks of 10 ms
    cpus = {"cpu0": (100, 20, 30, 50, 9, 40, 50, 7), "cpu1": (50, 0, 0, 100, 0, 0, 0, 3)}
    write_proc(tmp_path, cpus, job_ticks=(40, 10, 60, 20), own_ticks=(5, 5), swap=(3, 4))
    load = begun.stop()
    assert load.num_processors == 2
    assert load.busy_cpu_s == pytest.approx(2.0)  # neither idle nor interrupts
    assert load.steal_cpu_s == pytest.approx(0.1)
    assert load.job_cpu_s == pytest.approx(1.4)  # without our own children: they are not the job's
    page = os.sysconf("SC_PAGESIZE")
    assert (load.swap_in_bytes, load.swap_out_bytes) == (3 * page, 4 * page)
    assert load.unavailable == {}


def test_what_cannot_be_read_is_null_with_a_reason(tmp_path):
    load = HostWatch([JOB], tmp_path).stop()
    known = ("busy_cpu_s", "steal_cpu_s", "job_cpu_s", "swap_in_bytes", "num_processors")
    assert [getattr(load, name) for name in known] == [None] * 5
    assert set(known) <= set(load.unavailable)
    assert "FileNotFoundError" in load.unavailable["busy_cpu_s"]
    assert (load.foreign_cores, load.steal_fraction) == (None, None)


def test_a_machine_that_counts_nothing_is_not_taken_for_an_idle_one(tmp_path):
    write_proc(tmp_path)
    (tmp_path / "stat").write_text("cpu 0 0 0 0 0 0 0 0 0 0\ncpu0 0 0 0 0 0 0 0 0 0 0\n")
    load = HostWatch([JOB], tmp_path, [0]).stop()
    assert load.busy_cpu_s is None
    assert "counts no processor's time" in load.unavailable["busy_cpu_s"]
