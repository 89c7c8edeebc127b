"""What the operating system says of this machine: cores, limits, the variables that matter."""

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from scalebench import resources
from scalebench.records.measured.wires import NodeLinks
from scalebench.records.storage.secrets import names_a_secret, without_secrets
from scalebench.resources import allowed_processors, count_cores, read_processors
from scalebench.spec.world import World

_VARIABLES = re.compile(
    r"^((NCCL|RCCL|TORCH|TORCHINDUCTOR|PYTORCH|GLOO|OMP|MKL|KMP|CUBLAS|HIP|FI|UCX)_"
    r"|(CUDA_VISIBLE_DEVICES|CUDA_LAUNCH_BLOCKING|CUDA_DEVICE_MAX_CONNECTIONS|NVIDIA_TF32_OVERRIDE)$)"
)


def num_cores() -> int:
    """Return how many cores this process may keep busy: affinity, and the cgroup's quota.

    Physical cores: processors that share one (SMT siblings) count once.
    """
    allowed = count_cores(read_processors(allowed_processors()))
    quota = cgroup_cpu_quota()
    return max(1, min(allowed, int(quota)) if quota else allowed)


def cgroup_cpu_quota() -> float | None:
    """Return the CPU limit of this process's cgroups in cores, or None without one."""
    try:
        return resources.cpu_quota(resources.own_hierarchy("cpu"))
    except OSError:
        return None


def cgroup_memory_bytes() -> int | None:
    """Return the memory limit of this process's cgroups in bytes, or None without one."""
    try:
        return resources.memory_bytes(resources.own_hierarchy("memory"))
    except OSError:
        return None


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().split("\n", 1)[0].strip()
    except (OSError, UnicodeDecodeError):
        return ""


def cpu_model() -> str:
    """Return the processor's name, as good as the platform tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def relevant_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that change results, by allow-list; never a secret."""
    return {
        name: without_secrets(value)
        for name, value in sorted(environment.items())
        if _VARIABLES.match(name) and not names_a_secret(name)
    }


_DRIVERS = ("/proc/driver/nvidia/version", "/sys/module/amdgpu/version")
_VERSION = re.compile(r"(?<![\w.])\d+(?:\.\d+){1,3}(?![\w.])")


def driver_version(paths: Sequence[str] = _DRIVERS) -> str | None:
    """Return the version of the GPUs' kernel driver, as it tells it itself; None: there is none.

    Args:
        paths: Files in whose first line it stands: NVIDIA's names the module before the version.
    """
    for path in paths:
        if found := _VERSION.search(_first_line(path)):
            return found[0]
    return None


def fingerprint(survey: Mapping[str, Any], world: World | None = None) -> dict[str, Any]:
    """Return what has to be the same for two runs to be comparable, and what explains them.

    ``survey`` is from the worker; the first machine of ``world`` is this one.
    """
    return {
        **({} if world is None else {"world": world.model_dump(mode="json")}),
        **survey,
        "host": platform.node(),
        "os": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "driver": driver_version(),
        "cpu": cpu_model(),
        "cores": num_cores(),
        "processors": len(allowed_processors()),
        "memory_bytes": psutil.virtual_memory().total,
        "cgroup_memory_bytes": cgroup_memory_bytes(),
        "cgroup_cpus": cgroup_cpu_quota(),
        "variables": relevant_variables(os.environ),
    }


DECISIVE = ("torch", "cuda", "hip", "nccl", "driver", "cpu", "cores", "machine")
"""Fields of the fingerprint without whose agreement two runs are not comparable."""


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the decisive fields in which two fingerprints differ, devices included."""
    different = [name for name in DECISIVE if ours.get(name) != theirs.get(name)]
    names = [[d.get("name") for d in side.get("devices") or []] for side in (ours, theirs)]
    different += ["devices"] if names[0] != names[1] else []
    worlds = [_shape(side.get("world")) for side in (ours, theirs)]
    return different + (["number of nodes, ranks or cores"] if worlds[0] != worlds[1] else [])


def _shape(world: Mapping[str, Any] | None) -> list[tuple[int, ...]]:
    """Return what of a world has to be the same, whatever its machines are called."""
    nodes = (world or {}).get("nodes", [])
    return [(len(node["ranks"]), node["num_cores"], node["num_gpus"]) for node in nodes]


def elsewhere(identified: Mapping[str, Any], fingerprint: Mapping[str, Any]) -> list[str]:
    """Return in what a machine that was identified earlier is not the one with this fingerprint.

    ``identified``: by `identity`; empty: nothing is known of it.
    """
    if not identified:
        return ["unknown machine"]
    here = identity(fingerprint)
    return [name for name in here if identified.get(name) != here[name]]


def identity(fingerprint: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells one machine, with its software, from another."""
    devices = [device.get("name") for device in fingerprint.get("devices") or []]
    return {name: fingerprint.get(name) for name in ("host", *DECISIVE)} | {"devices": devices}


def host_links(ask_gpus: bool = True, sysfs: Path = Path("/sys/class/infiniband")) -> NodeLinks:
    """Return this machine's InfiniBand and RoCE ports, and which GPUs NVLink joins.

    ``ask_gpus`` calls nvidia-smi, which can take seconds. Of several speeds of adapters in
    ``sysfs`` the fastest ports count: a slower one serves storage or management.
    """
    rates: dict[str, float] = {}
    for port in sorted(sysfs.glob("*/ports/*")):
        layer = _first_line(f"{port}/link_layer")
        if "ACTIVE" in _first_line(f"{port}/state") and layer in ("InfiniBand", "Ethernet"):
            rate = _first_line(f"{port}/rate").partition(" ")[0]
            rates[f"{port.parts[-3]}:{port.name}"] = float(rate or 0)
    fastest = [name for name, rate in rates.items() if rate == max(rates.values())]
    host = platform.node().partition(".")[0]
    if not ask_gpus:
        return NodeLinks(host=host, adapters=fastest)
    try:
        asked = ["nvidia-smi", "topo", "-m"]
        told = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return NodeLinks(host=host, adapters=fastest)
    gpus = [line.split() for line in told.splitlines() if re.match(r"GPU\d+\s", line)]
    joined = [
        (row, column)
        for row, words in enumerate(gpus)
        for column in range(row + 1, len(gpus))
        if re.fullmatch(r"NV\d+", words[column + 1])
    ]
    return NodeLinks(host=host, adapters=fastest, nvlinks=joined, num_gpus=len(gpus))
