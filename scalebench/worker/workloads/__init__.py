"""The workloads themselves: a model, its data and its loss for every kind in the catalog."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from scalebench.spec import Loader
from scalebench.spec.presets import WorkloadSpec
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.workloads.batches import ResidentBatches
from scalebench.worker.workloads.classifiers import build_cnn, build_mlp
from scalebench.worker.workloads.loaded import LoadedBatches, build_paced
from scalebench.worker.workloads.named import build_custom
from scalebench.worker.workloads.transformers import build_gpt, build_moe

__all__ = ["build_workload"]

_BUILDERS: dict[str, Callable[[Any, Shard], Workload]] = {
    "gpt": build_gpt,
    "gpt-moe": build_moe,
    "cnn": build_cnn,
    "mlp": build_mlp,
    "paced": build_paced,
    "custom": build_custom,
}


def build_workload(spec: WorkloadSpec, shard: Shard, loader: Loader | None = None) -> Workload:
    """Build what ``spec`` describes, with the data that ``shard`` has to feed.

    Parameters are drawn from the global random state, which the caller has seeded alike in every
    rank, and live on the default device (``with torch.device(...)``). The data come from
    generators of their own and from ``shard.seed`` alone, and live on ``shard.device``; with a
    loader, which only the built-in workloads can be given, in host memory.

    Raises:
        UsageError: The data are smaller than one global batch, the shape contradicts itself, or
            the user's own workload cannot be used.
        EnvironmentUnfit: The text corpus is not on this machine.
    """
    build = _BUILDERS[spec.kind]
    if loader is None:
        return build(spec, shard)
    workload = build(spec, replace(shard, device=torch.device("cpu")))
    assert isinstance(workload.batches, ResidentBatches), "the plan accepts no other workload"
    return replace(workload, batches=LoadedBatches(workload.batches, loader, shard.device))
