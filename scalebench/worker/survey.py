"""What torch says of this machine and its compilers, and what a user's workload turns out to be.

Both run in a separate process, so that asking leaves no CUDA context behind.
"""

import importlib.util
import json
import math
import os
import platform
import shutil
import sys
import sysconfig
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from scalebench.errors import UsageError
from scalebench.records.files import write_atomic
from scalebench.records.folder import Scratch
from scalebench.spec.presets import CustomTarget
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import describe
from scalebench.worker.strategies import TRAININGS
from scalebench.worker.strategies.pipelining import ask_torch
from scalebench.worker.workloads import build_workload
from scalebench.worker.workloads.batches import endless

RATE_SECONDS = 0.2

NVIDIA_DEVICES = Path("/proc/driver/nvidia/gpus")
AMD_NODES = Path("/sys/class/kfd/kfd/topology/nodes")
HIDING = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")

COMPILERS = {"cuda": ("CC", ("gcc", "clang"), "gcc"), "cpu": ("CXX", ("g++", "clang++"), "g++")}
"""Device → variable that names the compiler, those looked for without it, and Debian's package.

On CUDA and ROCm triton compiles C with them, on the CPU Inductor C++.
"""


def survey() -> dict[str, Any]:
    """Return versions, devices, backends and strategies as torch reports them."""
    cuda = torch.cuda.is_available()
    nccl = cuda and dist.is_nccl_available()
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "cudnn": torch.backends.cudnn.version() if cuda else None,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if nccl else None,
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "backends": [
            name
            for name, there in (
                ("gloo", dist.is_gloo_available()),
                ("nccl", dist.is_nccl_available()),
                ("mpi", dist.is_mpi_available()),
            )
            if there
        ],
        "strategies": sorted(TRAININGS),
        "devices": [_device(i) for i in range(torch.cuda.device_count())] if cuda else [],
        "unusable": unusable_devices(),
    }


def _device(index: int) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": properties.name,
        "uuid": str(properties.uuid),
        "memory_bytes": properties.total_memory,
        "capability": f"{properties.major}.{properties.minor}",
        "bfloat16": torch.version.hip is not None or properties.major >= 8,
        "peers": [
            other
            for other in range(torch.cuda.device_count())
            if other != index and torch.cuda.can_device_access_peer(index, other)
        ],
    }


def measure_rates(device: torch.device, size: int) -> dict[str, float]:
    """Return the matrix and copy rate of a device, best of the repetitions within 0.2 s.

    ``size``: side of the square matrices, in `rated_format`.

    Returns:
        ``matrix_flop_per_s`` and ``copy_byte_per_s`` (bytes read and written).
    """
    a = torch.randn(size, size, device=device).to(rated_format(device))
    b = torch.empty_like(a)
    matrix_s = _best_time(device, lambda: torch.mm(a, a, out=b))
    source = torch.ones(16 * size * size, device=device)
    target = torch.empty_like(source)
    copy_s = _best_time(device, lambda: target.copy_(source))
    return {
        "matrix_flop_per_s": 2 * size**3 / matrix_s,
        "copy_byte_per_s": 2 * source.numel() * source.element_size() / copy_s,
    }


def rated_format(device: torch.device) -> torch.dtype:
    """Return the format in which a device trains: float16 where torch would emulate bfloat16."""
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if _device(device.index)["bfloat16"] else torch.float16


def _best_time(device: torch.device, action: Any) -> float:
    action()
    best, end = math.inf, time.perf_counter() + RATE_SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        action()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def unusable_devices() -> dict[str, str] | None:
    """Return what devices there are although torch sees none to train on; initialises CUDA.

    Returns:
        ``devices`` (how many of what, and who says so) and ``reason`` (torch's own words where it
        is torch that sees none). None: torch sees devices, or there are none, or the user has
        hidden them.
    """
    if torch.cuda.is_available() or _hidden():
        return None
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is not None:
        count = torch.accelerator.device_count()
        return {
            "devices": f"torch has {count} device(s) of type {accelerator.type}",
            "reason": "scalebench cannot train on it",
        }
    there = _of_the_driver()
    return (
        None
        if there is None
        else {"devices": f"{there}, and torch sees none", "reason": _words_of_torch()}
    )


def _hidden() -> bool:
    """Whether a variable says that no device is to be used."""
    given = (os.environ[name].strip() for name in HIDING if name in os.environ)
    return any(value in ("", "NoDevFiles") or value.startswith("-1") for value in given)


def _of_the_driver() -> str | None:
    """Say how many GPUs the kernel's driver shows; None: none.

    AMD's are asked for only where torch is built for them: many processors have a graphics part
    that the driver shows and no one trains on.
    """
    if torch.version.hip is not None:
        count = sum(_is_amd_gpu(node) for node in AMD_NODES.glob("*"))
        return f"AMD's driver shows {count} GPU(s)" if count else None
    of_kernel = len(list(NVIDIA_DEVICES.glob("*")))
    for who, number in (("NVML", _count_of_nvml()), (NVIDIA_DEVICES, of_kernel)):
        if number:
            return f"{who} shows {number} GPU{'s' * (number > 1)}"
    return None


def _is_amd_gpu(node: Path) -> bool:
    with suppress(OSError, ValueError):
        return int((node / "gpu_id").read_text()) > 0  # a processor's is 0
    return False


def _count_of_nvml() -> int:
    try:
        import pynvml

        pynvml.nvmlInit()
        return int(pynvml.nvmlDeviceGetCount())
    except Exception:  # no library, no driver, or one at fault: the kernel may still tell
        return 0


def _words_of_torch() -> str:
    """Return what torch says when it is made to use a device: asked politely it only warns."""
    try:
        torch.cuda.init()
    except Exception as error:
        return " ".join(str(error).split()) or type(error).__name__
    return "torch.cuda.is_available() is false"


def why_not_compiled(device: str) -> dict[str, str] | None:
    """Compile and run one kernel; changes this process's environment.

    On CUDA with empty caches: what was compiled earlier proves nothing. On the CPU that would take
    long, and what Inductor needs there is known.

    Args:
        device: ``cuda`` or ``cpu``.

    Returns:
        ``problem`` and ``remedy``; None: it works.
    """
    if device == "cpu" and (missing := what_is_missing(device)) is not None:
        return missing
    with Scratch() as empty:
        if device == "cuda":
            names = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
            os.environ |= dict.fromkeys(names, os.fspath(empty))
        try:
            _compile_one(device)
        except Exception as error:
            again = "a torch.compile of one function in `python` shows it again"
            return what_is_missing(device) or {"problem": describe(error).message, "remedy": again}
    return None


def _compile_one(device: str) -> None:
    import torch._inductor.config as inductor  # takes seconds, which nobody else has to wait for

    inductor.compile_threads = 1  # no pool of processes for one kernel
    torch.compile(lambda x: 2 * x + 1)(torch.ones(8, device=device))


def what_is_missing(device: str) -> dict[str, str] | None:
    """Return what there is not of all that compiling needs, and what installs it; None: nothing."""
    variable, names, package = COMPILERS[device]
    compiler = os.environ.get(variable)
    missing: dict[str, str] = {}
    if not any(map(shutil.which, [compiler] if compiler else names)):
        missing[f"no {'C' if device == 'cuda' else 'C++'} compiler"] = f"apt install {package}"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        missing["no Python.h"] = f"apt install python{version}-dev"
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        missing["no triton"] = "pip install triton"
    if not missing:
        return None
    return {"problem": ", ".join(missing), "remedy": "; ".join(missing.values())}


def describe_workload(request: dict[str, Any]) -> dict[str, Any]:
    """Build the user's workload, try its loss once, and return what it is.

    Raises:
        UsageError: The loss is not what a loss has to be, or it raises.
    """
    target = CustomTarget.model_validate(request["workload"])
    shard = Shard(
        rank=0,
        world_size=1,
        batch_size=int(request["batch_size"]),
        seed=0,
        device=torch.device(request["device"]),
    )
    torch.manual_seed(0)
    workload = build_workload(target, shard)
    _try_loss(target, workload, shard)
    return {
        "num_parameters": sum(p.numel() for p in workload.module.parameters()),
        "tokens_per_sample": workload.tokens_per_sample,
        "num_blocks": len(workload.blocks),
        "tensor_plan": None if workload.tensor_plan is None else asdict(workload.tensor_plan),
        "context_plan": None if workload.context_plan is None else asdict(workload.context_plan),
        "experts": [len(next(layer.parameters())) for layer in workload.experts],
    }


def _try_loss(target: CustomTarget, workload: Workload, shard: Shard) -> None:
    module = workload.module.to(shard.device)
    batch = next(endless(workload.batches, shard.device, shard.batch_size))
    try:
        loss = workload.loss(module, batch)
    except Exception as error:
        raise UsageError(
            f"--workload {target.name}: its loss raised {type(error).__name__}: {error}. "
            "It is called as loss(module, batch) with a batch of the workload's own."
        ) from error
    if not isinstance(loss, torch.Tensor) or loss.ndim != 0 or not loss.requires_grad:
        given = (
            f"a tensor of shape {tuple(loss.shape)}, requires_grad={loss.requires_grad}"
            if isinstance(loss, torch.Tensor)
            else f"{type(loss).__name__}"
        )
        raise UsageError(
            f"--workload {target.name}: its loss returned {given}. Return the mean loss over the "
            "batch as a scalar tensor that depends on the module's parameters."
        )


def run_survey(request: dict[str, Any]) -> int:
    """Write the survey to ``request["answer"]``; with ``rates`` true, measure devices too."""
    answer = survey()
    if request.get("rates"):
        answer["rates"] = [
            {
                "device": f"cuda:{d['index']}",
                **measure_rates(torch.device("cuda", d["index"]), 8192),
            }
            for d in answer["devices"]
        ] or [{"device": "cpu", **measure_rates(torch.device("cpu"), 1024)}]
        answer["uncompiled"] = why_not_compiled("cuda") if answer["devices"] else None
    return _answer(request, answer)


def run_compile(request: dict[str, Any]) -> int:
    """Write why ``torch.compile`` does not work on ``request["device"]``, or null: it does."""
    return _answer(request, {"uncompiled": why_not_compiled(request["device"])})


def run_describe(request: dict[str, Any]) -> int:
    """Write what the user's workload is to ``request["answer"]``, or what is wrong with it."""
    try:
        answer = describe_workload(request)
    except Exception as error:
        answer = {"error": describe(error).model_dump()}
    return _answer(request, answer)


def run_schedule(request: dict[str, Any]) -> int:
    """Write the passes of a schedule's ranks, in torch's order, or why torch refuses."""
    sizes = (int(request[size]) for size in ("ranks", "microbatches", "chunks"))
    answer: dict[str, Any]
    try:
        schedule = ask_torch(request["name"], *sizes)
        answer = {"ranks": [list(map(str, actions)) for actions in schedule.ranks]}
    except Exception as error:
        answer = {"error": describe(error).model_dump()}
    return _answer(request, answer)


def _answer(request: dict[str, Any], answer: dict[str, Any]) -> int:
    write_atomic(Path(request["answer"]), json.dumps(answer))
    return 0
