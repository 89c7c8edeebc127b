"""Writes what nccl-tests prints, for every header it has had, with the points that are in it."""

import json
from dataclasses import dataclass, field

ITEMSIZE = {"int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8, "uint64": 8, "half": 2}
ITEMSIZE |= {"float": 4, "double": 8, "bfloat16": 2, "f8e4m3": 1, "f8e5m2": 1}
TORCH = {"half": "float16", "float": "float32", "double": "float64"}
TORCH |= {"f8e4m3": "float8_e4m3fn", "f8e5m2": "float8_e5m2"}

PROGRAM = {"all_to_all": "alltoall", "send_recv": "sendrecv"}
SHARED = ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter", "hypercube")
REDUCING = ("all_reduce", "reduce_scatter", "reduce", "send_recv")
ROOTED = ("broadcast", "reduce", "gather", "scatter")
UNCHECKED_IN_PLACE = ("send_recv", "all_to_all")
OPS = ("all_reduce", "broadcast", "reduce", "send_recv", *SHARED)

OWN_COLUMNS = {
    "all_reduce": ("redop",),
    "reduce_scatter": ("redop",),
    "all_to_all": ("redop",),
    "reduce": ("redop", "root"),
    "broadcast": ("root",),
    "gather": ("root",),
    "scatter": ("root",),
    "all_gather": (),
    "send_recv": (),
    "hypercube": (),
}
"""Behind size, count and type, while each test had a header of its own."""


def factor(op, num_ranks):
    share = (num_ranks - 1) / num_ranks
    return 2 * share if op == "all_reduce" else share if op in SHARED else 1.0


@dataclass(frozen=True)
class Result:
    """What one row is about; ``times_us`` and ``wrong``: out of place, in place."""

    count: int = 262144
    times_us: tuple = (100.0, 101.0)
    wrong: tuple = (0, 0)


@dataclass(frozen=True)
class Run:
    """One run of a test. ``style``: ``own`` header, ``common`` or ``new``."""

    op: str = "all_reduce"
    num_ranks: int = 8
    results: tuple = (Result(),)
    type_name: str = "float"
    redop: str = "sum"
    root: int = 0
    style: str = "common"
    is_checked: bool = True
    has_cpu_time: bool = False
    extra: tuple = ()
    has_stamp: bool = False
    blank_redop: bool = False
    ranks_per_process: int = 1
    has_ranks: bool = True
    has_footer: bool = True
    is_named: bool = False
    algbw_is_busbw: bool = False
    groups: tuple = field(default=())

    @property
    def columns(self):
        return OWN_COLUMNS[self.op] if self.style == "own" else ("redop", "root")

    @property
    def checked_column(self):
        return "error" if self.style == "own" else "#wrong"

    def size_bytes(self, result):
        return result.count * ITEMSIZE[self.type_name] * (self.num_ranks if self.shares else 1)

    @property
    def shares(self):
        return self.op in SHARED

    def is_mode_checked(self, in_place):
        return self.is_checked and not (in_place and self.op in UNCHECKED_IN_PLACE)

    def bandwidths(self, result, mode):
        """Return algbw and busbw in GB/s, as the columns have them."""
        rate = self.size_bytes(result) / result.times_us[mode] / 1e3
        busbw = rate * factor(self.op, self.num_ranks)
        return (busbw if self.algbw_is_busbw or self.op == "hypercube" else rate), busbw


def squeezed(value, width):
    """Write a number with as many decimals, two at most, as fit into the width."""
    for decimals in (2, 1, 0):
        text = f"{value:.{decimals}f}"
        if len(text) <= width:
            return text
    return f"{value:.1e}" if width >= 7 else f"{value:.0e}"


CPU_SHARE = 0.25
"""Of the operation's time, which passes in the call."""


def time_text(run, value):
    value *= CPU_SHARE if run.has_cpu_time else 1
    if run.style == "new":
        return squeezed(value, 7)
    return f"{value:.{0 if value >= 10000 else 1 if value >= 100 else 2}f}"


def bandwidth_text(run, value):
    return squeezed(value, 6) if run.style == "new" else f"{value:.2f}"


def checked_text(run, result, mode):
    if not run.is_mode_checked(mode == 1):
        return "N/A"
    return f"{result.wrong[mode]:.0e}" if run.style == "own" else f"{result.wrong[mode]:g}"


def header(run):
    behind = ("cputime" if run.has_cpu_time else "time", "algbw", "busbw", run.checked_column)
    names = ("size", "count", "type", *run.columns, *2 * (*behind, *run.extra))
    stamp = ("timestamp",) if run.has_stamp else ()
    return "# " + "  ".join(f"{name:>7}" for name in (*names, *stamp))


def row(run, result):
    words = [f"{run.size_bytes(result):12d}", f"{result.count:12d}", f"{run.type_name:>8}"]
    if "redop" in run.columns:
        none = "" if run.blank_redop else "none"
        words.append(f"{run.redop if run.op in REDUCING else none:>6}")
    if "root" in run.columns:
        words.append(f"{run.root if run.op in ROOTED else -1:6d}")
    for mode in (0, 1):
        algbw, busbw = run.bandwidths(result, mode)
        words.append(f"{time_text(run, result.times_us[mode]):>7}")
        words += [f"{bandwidth_text(run, value):>6}" for value in (algbw, busbw)]
        words.append(f"{checked_text(run, result, mode):>6}")
        words += [f"{1.5:7.2f}" for _ in run.extra]
    if run.has_stamp:
        words.append("2026-01-31 12:00:00")
    return "  ".join(words)


def preamble(run):
    if run.is_named:
        yield "# nccl-tests version 2.18.3 nccl-headers=22809 nccl-library=22809"
        yield f"# Collective test starting: {PROGRAM.get(run.op, run.op)}_perf"
    yield f"# nThread 1 nGpus {run.ranks_per_process} minBytes 8 maxBytes 128 step: 2(factor)"
    yield "# Using devices"
    if run.has_ranks:
        for rank in range(run.num_ranks):
            number = run.groups[rank] if run.groups else 0
            group = "" if run.style == "own" else f" Group {number:2d}"
            yield (
                f"#  Rank {rank:2d}{group} Pid  4711 on     node{rank // 8} device  {rank % 8} "
                "[0x18] NVIDIA H100 80GB HBM3"
            )


def lines(run):
    yield from preamble(run)
    yield "#" + " " * 40 + "out-of-place                       in-place"
    yield header(run)
    yield "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)"
    yield from (row(run, result) for result in run.results)
    if run.has_footer:
        every = [run.bandwidths(result, mode)[1] for result in run.results for mode in (0, 1)]
        yield "# Out of bounds values : 0 OK"
        yield f"# Avg bus bandwidth    : {sum(every) / len(every):g} "
        yield "#"
    if run.has_footer and run.is_named:
        yield f"# Collective test concluded: {PROGRAM.get(run.op, run.op)}_perf"


def text(run, prefix="", noise=()):
    """Return the log; a line of noise stands behind each line."""
    out = []
    for i, line in enumerate(lines(run)):
        out.append(prefix + line)
        out += noise[i : i + 1]
    return "\n".join(out) + "\n"


def facts(run):
    """Return what the points have to say: op, size, count, dtype, …, as far as it is printed."""
    found = []
    for result in run.results:
        for mode in (0, 1):
            time_us = float(time_text(run, result.times_us[mode]))
            algbw, busbw = (float(bandwidth_text(run, v)) for v in run.bandwidths(result, mode))
            checked = run.is_mode_checked(mode == 1)
            told = {
                "redop": run.redop if run.op in REDUCING and "redop" in run.columns else None,
                "root": run.root if run.op in ROOTED else None,
                "time_us": None if run.has_cpu_time else time_us,
                "num_wrong": result.wrong[mode] if checked and run.style != "own" else None,
            }
            told |= {"op": run.op, "world_size": run.num_ranks, "in_place": mode == 1}
            told |= {"size_bytes": run.size_bytes(result), "count": result.count}
            told |= {"dtype": TORCH.get(run.type_name, run.type_name)}
            told |= {"itemsize": ITEMSIZE[run.type_name]}
            found.append(told | {"algbw_gb_per_s": algbw, "busbw_gb_per_s": busbw})
    return found


def json_text(run, lists_all=False, **changed):
    """Return the file that ``-J`` writes; only the first rank of a process is listed there."""
    step = 1 if lists_all else run.ranks_per_process
    devices = [
        {"rank": rank, "group": 0, "hostname": f"node{rank // 8}", "device_info": "H100"}
        for rank in range(0, run.num_ranks, step)
    ]
    results = []
    for result in run.results:
        entry = {
            "size": run.size_bytes(result),
            "count": result.count,
            "type": run.type_name,
            "redop": run.redop if run.op in REDUCING else "none",
            "root": f"{run.root if run.op in ROOTED else -1:6d}",
        }
        for mode, name in enumerate(("out_of_place", "in_place")):
            algbw, busbw = run.bandwidths(result, mode)
            entry[name] = {
                "cpu_time" if run.has_cpu_time else "time": round(
                    result.times_us[mode] * (CPU_SHARE if run.has_cpu_time else 1), 6
                ),
                "alg_bw": round(algbw, 6),
                "bus_bw": round(busbw, 6),
                "nwrong": float(result.wrong[mode]) if run.is_mode_checked(mode == 1) else None,
            }
        results.append(entry)
    content = {
        "version": 2,
        "args": [f"./build/{PROGRAM.get(run.op, run.op)}_perf", "-g", "8"],
        "env": ["HOME=/root"],
        "nccl_version": 22809,
        "config": {"nthreads": 1, "ngpus": run.ranks_per_process, "devices": devices},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
    }
    return json.dumps(content | changed)
