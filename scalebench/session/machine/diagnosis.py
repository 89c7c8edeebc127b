"""What about this machine would spoil a measurement, and what to do about it.

`read_conditions` looks, `diagnose` judges: the second is a pure function of facts, so that every
warning can be tested without the machine that deserves it. Which wires NCCL takes is read from a
user's logs, or tried on the GPUs of this machine.
"""

import os
import resource
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from scalebench.costmodel.links.nccl_log import merged as merged_logs
from scalebench.costmodel.links.nccl_log import read_nccl_log
from scalebench.costmodel.links.topology import wire_findings
from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch.base import ProbeFailed
from scalebench.launch.local import LocalLauncher
from scalebench.launch.processes import why_no_loopback
from scalebench.machine import host_links
from scalebench.records.measured.rank import NcclWires
from scalebench.session.machine.survey import about_unusable
from scalebench.spec.probes import Sweep, Transfer

MIN_TORCH = (2, 11)
MIN_SHM_BYTES = 1 << 30
MIN_FILES = 1024
SLOW_DEVICE = 0.9
BUSY_SHARE = 0.2


@dataclass(frozen=True)
class Finding:
    """One thing that is worth telling.

    Attributes:
        level: ``warning`` spoils numbers; ``note`` explains them.
        remedy: What to do; empty when there is nothing to do.
    """

    level: Literal["warning", "note"]
    text: str
    remedy: str = ""


def read_conditions() -> dict[str, Any]:
    """Return what is true of the machine right now; null where the platform does not tell."""
    shm = Path("/dev/shm")
    frequency = psutil.cpu_freq()
    list(psutil.process_iter(["cpu_percent"]))  # counts from here on
    busy_share = psutil.cpu_percent(interval=0.5) / 100
    others = [
        one.info | {"cores": one.info["cpu_percent"] / 100}
        for one in psutil.process_iter(["cpu_percent", "name", "pid"])
        if one.info["cpu_percent"] and one.pid != os.getpid()
    ]
    governor = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")
    return {
        "cpu_busy_share": busy_share,
        "busiest": max(others, key=lambda one: one["cores"], default=None),
        "memory_available_bytes": psutil.virtual_memory().available,
        "swap_used_bytes": psutil.swap_memory().used,
        "shm_bytes": shutil.disk_usage(shm).total if shm.is_dir() else None,
        "no_loopback": why_no_loopback(),
        "open_files_limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "cpu_governor": governor.read_text().strip() if governor.is_file() else None,
        "cpu_clock_hz": frequency.current * 1e6 if frequency else None,
        "links": {
            name: {"bit_per_s": stats.speed * 1_000_000 or None, "mtu_bytes": stats.mtu}
            for name, stats in psutil.net_if_stats().items()
            if stats.isup
        },
        "compiler": shutil.which("g++") or shutil.which("clang++"),
        "sched_batch": hasattr(os, "SCHED_BATCH"),
    }


def diagnose(facts: Mapping[str, Any], conditions: Mapping[str, Any]) -> list[Finding]:
    """Return everything worth telling, warnings first.

    Args:
        facts: The machine's fingerprint, with ``rates`` of its devices.
        conditions: What `read_conditions` found.
    """
    found = [
        *_about_torch(facts),
        *_about_devices(facts),
        *_about_load(facts, conditions),
        *_about_limits(facts, conditions),
        *_about_virtual_hosts(conditions.get("virtual_hosts")),
        *_about_variables(facts.get("variables", {})),
    ]
    return sorted(found, key=lambda finding: finding.level != "warning")


def _about_torch(facts: Mapping[str, Any]) -> Iterator[Finding]:
    version = tuple(int(part) for part in facts["torch"].split("+")[0].split(".")[:2])
    if version < MIN_TORCH:
        yield Finding(
            "warning",
            f"torch {facts['torch']} is older than {'.'.join(map(str, MIN_TORCH))}",
            "upgrade torch",
        )
    if "gloo" not in facts["backends"]:
        yield Finding("warning", "torch has no gloo backend", "use a torch build with gloo")


def _about_devices(facts: Mapping[str, Any]) -> Iterator[Finding]:
    unusable = about_unusable(facts)
    if unusable is not None:
        yield Finding("warning", *unusable)
    elif not facts["devices"]:
        built_for = "CUDA" if facts.get("cuda") else "ROCm" if facts.get("hip") else None
        why = f"torch sees no {built_for} device" if built_for else "torch is a CPU build"
        yield Finding("note", f"{why}: ranks run on CPU over gloo")
    elif "nccl" not in facts["backends"]:
        yield Finding("warning", "CUDA devices but no NCCL in torch", "use a torch build with NCCL")
    uncompiled = facts.get("uncompiled")
    if uncompiled is not None:
        what = f"torch.compile, the default on GPUs, does not work: {uncompiled['problem']}"
        yield Finding("warning", f"{what}; ranks run eagerly", uncompiled["remedy"])
    for kind in ("matrix_flop_per_s", "copy_byte_per_s"):
        rates = {rate["device"]: rate[kind] for rate in facts.get("rates", [])}
        for device, rate in rates.items():
            if rate < SLOW_DEVICE * max(rates.values()):
                share = rate / max(rates.values())
                yield Finding(
                    "warning",
                    f"{device} reaches {share:.0%} of the fastest device's {kind.split('_')[0]} "
                    "rate: it will slow down every step",
                    "look at its clocks, temperature and other users (nvidia-smi -q -d "
                    "PERFORMANCE), or leave it out with CUDA_VISIBLE_DEVICES",
                )


def _about_load(facts: Mapping[str, Any], conditions: Mapping[str, Any]) -> Iterator[Finding]:
    busy = conditions["cpu_busy_share"]
    if busy > BUSY_SHARE:
        one = conditions["busiest"]
        most = (
            f", most of all {one['name']} ({one['pid']}): {one['cores']:.1f} cores" if one else ""
        )
        yield Finding(
            "warning",
            f"other programs keep the processors {busy:.0%} busy{most}",
            "close them, or treat CPU numbers with caution",
        )
    if conditions["swap_used_bytes"]:
        yield Finding("note", "swap is in use", "free memory before measuring")
    governor = conditions["cpu_governor"]
    if governor not in (None, "performance"):
        yield Finding(
            "note",
            f"the CPU frequency governor is {governor!r}: clocks change under load",
            "cpupower frequency-set -g performance",
        )


def _about_limits(facts: Mapping[str, Any], conditions: Mapping[str, Any]) -> Iterator[Finding]:
    quota = facts.get("cgroup_cpus")
    if quota is not None and quota < 1:
        yield Finding(
            "warning",
            f"the cgroup allows {quota:.2g} of a core: ranks are stopped in the middle of steps",
            "raise the CPU limit of the container",
        )
    shm = conditions["shm_bytes"]
    if shm is not None and shm < MIN_SHM_BYTES:
        yield Finding(
            "warning",
            f"/dev/shm has only {shm / 1e6:.0f} MB: NCCL and data loaders may fail",
            "start the container with --shm-size=1g or --ipc=host",
        )
    if conditions["no_loopback"] is not None:
        yield Finding(
            "warning",
            f"nothing can connect to 127.0.0.1, so no two ranks can: {conditions['no_loopback']}",
            "ip link set lo up; ip address add 127.0.0.1/8 dev lo",
        )
    if conditions["open_files_limit"] < MIN_FILES:
        yield Finding(
            "warning",
            f"only {conditions['open_files_limit']} open files are allowed",
            "ulimit -n 4096",
        )
    if conditions["compiler"] is None:
        yield Finding(
            "note", "no C++ compiler: --compile cannot work on CPU", "install g++ or clang"
        )
    if not conditions["sched_batch"]:
        yield Finding("note", "no SCHED_BATCH here: small messages between many CPU ranks are slow")


def _about_virtual_hosts(possible: Mapping[str, Any] | None) -> Iterator[Finding]:
    """Say what of --launcher lab cannot be had here.

    Args:
        possible: ``network`` and ``quota`` (reasons, or None); None: it was not tried.
    """
    if possible is None:
        return
    if possible["network"]:
        yield Finding(
            "note",
            f"no virtual hosts (--launcher lab): {possible['network']}",
            "run as root or allow user namespaces; install iproute2; load sch_tbf, veth, bridge",
        )
    elif possible["quota"]:
        yield Finding(
            "note",
            f"virtual hosts, but no share of the CPU for each (--cpus-per-rank): "
            f"{possible['quota']}",
            "run as root; under cgroup v2 also with cpu in a cgroup.subtree_control at or above "
            "the process's own, for example with systemd-run --scope -p Delegate=yes",
        )


_VARIABLES = {
    ("CUDA_LAUNCH_BLOCKING", "1"): "makes every kernel wait: no overlap is left to measure",
    ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"): "checks every collective: communication is slower",
    ("TORCH_NCCL_ENABLE_TIMING", "1"): "breaks the overlap of communication and computation",
    ("TORCH_NCCL_BLOCKING_WAIT", "1"): "makes the host wait for every collective",
}


def _about_variables(variables: Mapping[str, str]) -> Iterator[Finding]:
    for (name, value), effect in _VARIABLES.items():
        if variables.get(name) == value:
            yield Finding("warning", f"{name}={value} {effect}", f"unset {name}")


LIMIT_S = 300.0
SIZE_BYTES = 1 << 20


def wires_of_logs(files: Sequence[Path]) -> NcclWires:
    """Return the wires of one job, from its log or from those of all its processes.

    What this machine says of its links counts if the log was written here.

    Raises:
        UsageError: A file cannot be read, or none has a line of NCCL's log.
    """
    lines: list[str] = []
    for file in files:
        try:
            lines += file.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError as error:
            raise UsageError(f"--nccl-log {file}: {error.strerror}. Give a log of NCCL.") from None
    here = host_links()
    wires = read_nccl_log(lines, [] if here.host == "localhost" else [here])
    if wires is None:
        raise UsageError(
            f"--nccl-log {', '.join(map(str, files))}: no line of NCCL's log. Have NCCL write one: "
            "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET,GRAPH NCCL_DEBUG_FILE=nccl.%h.%p."
        )
    return _with_verdict(wires)


def wires_here() -> NcclWires:
    """Have every GPU of this machine send to every other, and return which wires NCCL took.

    Raises:
        EnvironmentUnfit: There are no two GPUs, or NCCL fails on them or writes no log.
    """
    with LocalLauncher() as launcher:
        survey = launcher.survey()
        num_gpus = len(survey["devices"])
        if num_gpus < 2 or "nccl" not in survey["backends"]:
            raise EnvironmentUnfit(
                f"doctor --links needs two GPUs and a torch with NCCL. Here: {num_gpus} GPUs, "
                f"backends {', '.join(survey['backends'])}. To read a log: --nccl-log FILE."
            )
        plan = Sweep(
            world_size=num_gpus,
            device="cuda",
            backend="nccl",
            threads=1,
            limit_s=LIMIT_S,
            transfers=tuple(
                Transfer(operation=name, size_bytes=SIZE_BYTES)
                for name in ("all_reduce", "all_to_all")
            ),
            repeats=1,
            nccl_log=True,
        )
        try:
            records = launcher.probe(plan, launcher.scratch / "links")
        except ProbeFailed as failed:
            raise EnvironmentUnfit(f"NCCL fails on the GPUs of this machine: {failed}") from None
    logs = [record.wires for record in records if record.wires is not None]
    if not logs:
        raise EnvironmentUnfit("NCCL wrote no log: unset NCCL_DEBUG and NCCL_DEBUG_FILE.")
    return _with_verdict(merged_logs(logs))


def _with_verdict(wires: NcclWires) -> NcclWires:
    return wires.model_copy(update={"findings": wire_findings(wires)})
