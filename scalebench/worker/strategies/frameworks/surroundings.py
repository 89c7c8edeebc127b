"""What a framework finds around it in a rank: the variables of a launcher; and what it says back.

All of it stays in the rank's own process: what a framework sets, prints and logs ends with it.
"""

import math
import os
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from scalebench.spec import FromFramework
from scalebench.worker.process.context import RankContext


def look_like_torchrun(context: RankContext) -> None:
    """Set the variables that torchrun sets: frameworks look for them, not for process groups.

    The ranks are connected already; no one listens at the address.
    """
    os.environ.update(
        RANK=str(context.rank),
        LOCAL_RANK=str(context.local_rank),
        WORLD_SIZE=str(context.cell.world_size),
        LOCAL_WORLD_SIZE=str(context.cell.world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
    )


def between_all(context: RankContext) -> dict[str, list[int]]:
    """Return that every operation goes between all ranks, whatever group a framework has made."""
    kinds = ("all_reduce", "all_gather", "reduce_scatter", "reduce", "broadcast")
    return {kind: list(range(context.cell.world_size)) for kind in kinds}


def framework_facts(
    strategy: FromFramework, settings: Mapping[str, Any], uncounted: str | None = None
) -> dict[str, Any]:
    """Return the rank's fact ``framework``: versions, and what was configured.

    ``settings``: what is in force, by the framework's own names. ``uncounted``: what the rank's
    memory leaves out.
    """
    found = {name: _version(name) for name in strategy.needs}
    tested = [name for name, known in strategy.needs.items() if found[name] == known]
    return {
        "framework": {
            "versions": found,
            "untested": [name for name in found if name not in tested],
            "tested": dict(strategy.needs),
            "settings": {name: _as_json(value) for name, value in settings.items()},
            "uncounted_memory": uncounted,
        }
    }


def _as_json(value: Any) -> Any:
    """Return a setting as JSON can hold it: infinity, which it cannot, as a word."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def ddp_settings(module: DistributedDataParallel) -> dict[str, Any]:
    """Return what a ``DistributedDataParallel`` says of itself."""
    return {
        "bucket_bytes_cap": module.bucket_bytes_cap,
        "gradient_as_bucket_view": module.gradient_as_bucket_view,
        "static_graph": module.static_graph,
        "find_unused_parameters": module.find_unused_parameters,
        "broadcast_buffers": module.broadcast_buffers,
    }


def sum_of_parts(losses: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the mean of the microbatches' mean losses; shape ()."""
    return losses[0] if len(losses) == 1 else torch.stack(list(losses)).mean()
