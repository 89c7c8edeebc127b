"""Questions that only a GPU answers: does NVML say what nvidia-smi says, and is a trace read?

``power`` reads an idle and a busy GPU in turn: power through scalebench's own NVML queries, through
``nvidia-smi``, and from the energy counter. ``trace FILE`` trains a GPT under DDP on one rank and
writes the Kineto trace of its profiler. Both print JSON. ``--cpu`` is the dry form::

    python -m benchmarks.gpu_probes [--cpu] power
    python -m benchmarks.gpu_probes [--cpu] trace FILE
"""

import argparse
import json
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from scalebench.launch.monitor import nvml as monitor
from scalebench.launch.monitor.nvml import STATE, Query

SMI = ("nvidia-smi", "--query-gpu=power.draw", "--format=csv,noheader,nounits", "--id=0")
PHASE_S = 6.0
"""The energy counter moves every 20 to 100 ms: over six seconds that is nothing."""
BATCH = 8


def power(cpu: bool) -> dict[str, Any]:
    """Compare NVML, nvidia-smi and the energy counter, in watts, idle and under matrix products."""
    if cpu:
        return {"skipped": "there is no GPU in the dry form"}
    import torch

    nvml, why = monitor.load_nvml()
    if nvml is None:
        return {"skipped": why}
    nvml.nvmlInit()
    devices, unavailable = monitor.open_devices(nvml, None)
    if not devices:
        return {"skipped": "; ".join(unavailable.values())}
    matrix = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)

    def multiply() -> None:
        for _ in range(400):
            torch.mm(matrix, matrix)
        torch.cuda.synchronize()

    return {
        "idle": compared(devices[0].read, read_smi, lambda: None, PHASE_S),
        "busy": compared(devices[0].read, read_smi, multiply, PHASE_S),
    }


def read_smi() -> float:
    """Return the power that nvidia-smi shows, watts."""
    return float(subprocess.run(SMI, capture_output=True, text=True, check=True).stdout)


def compared(
    read: Callable[[Sequence[Query]], Mapping[str, Any]],
    read_other: Callable[[], float],
    work: Callable[[], None],
    phase_s: float,
) -> dict[str, float]:
    """Return the power by three ways while the device does some work, watts.

    Args:
        read: Answers scalebench's queries.
        read_other: Another tool's power, watts.
        work: Done again and again, before each reading.
        phase_s: For how long.
    """
    ours, theirs = [], []
    first, began = read(STATE)["energy_j"], time.monotonic()
    while time.monotonic() - began < phase_s:
        work()
        ours.append(read(STATE)["power_w"])
        theirs.append(read_other())
    used_j, seconds = read(STATE)["energy_j"] - first, time.monotonic() - began
    return {
        "nvml_w": median(ours),
        "nvidia_smi_w": median(theirs),
        "energy_counter_w": used_j / seconds,
        "seconds": seconds,
    }


def trace(path: Path, cpu: bool) -> dict[str, Any]:
    """Write the Kineto trace of three DDP steps of one rank."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from torch.profiler import ProfilerActivity, profile, schedule

    from scalebench.spec.presets import PRESETS
    from scalebench.spec.workload import Shard
    from scalebench.worker.workloads import build_workload

    device = torch.device("cpu" if cpu else "cuda:0")
    dist.init_process_group("gloo" if cpu else "nccl", store=dist.HashStore(), rank=0, world_size=1)
    workload = build_workload(
        PRESETS["gpt-tiny" if cpu else "gpt-124m"], Shard(0, 1, BATCH, 0, device)
    )
    model = DistributedDataParallel(workload.module.to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    activities = [ProfilerActivity.CPU, *([] if cpu else [ProfilerActivity.CUDA])]
    batches = iter(workload.batches)
    with profile(
        activities=activities, schedule=schedule(wait=0, warmup=2, active=100)
    ) as profiler:
        for _ in range(5):
            optimizer.zero_grad()
            workload.loss(model, next(batches)).backward()
            optimizer.step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    dist.destroy_process_group()
    return {"file": path.name, "bytes": path.stat().st_size}


def main() -> None:
    """Answer one question and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("question", choices=["power", "trace"])
    parser.add_argument("file", type=Path, nargs="?")
    asked = parser.parse_args()
    is_power = asked.question == "power"
    print(json.dumps(power(asked.cpu) if is_power else trace(asked.file, asked.cpu)))


if __name__ == "__main__":
    main()
