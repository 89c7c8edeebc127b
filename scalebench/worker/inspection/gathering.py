"""Brings the batches of all ranks to rank 0, as tensors and JSON: nothing is unpickled."""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from scalebench.worker.process.agreement import dtype_of, gather_json
from scalebench.worker.process.context import RankContext
from scalebench.worker.workloads.batches import map_tensors, to_device


def gather_on_rank_0(batches: Sequence[Any], context: RankContext) -> list[Any] | None:
    """Return, on rank 0, the batches of every rank, by rank, in host memory; None on the others."""
    at_home = [to_device(batch, torch.device("cpu")) for batch in batches]
    return [at_home] if context.control is None else gather_batches(at_home, context.control)


def gather_batches(batches: Any, group: "dist.ProcessGroup") -> list[Any] | None:
    """Collect the batches of every rank of a group on its rank 0; None on the others.

    The structure, and what neither is a tensor nor a plain value in it, is rank 0's own.

    Args:
        batches: Tensors in host memory, in tuples, lists and dicts; structured alike on all ranks.
        group: Of CPU tensors; all of its ranks call this.
    """
    tensors: list[torch.Tensor] = []
    plain: list[Any] = []
    map_tensors(tensors.append, batches, other=plain.append)
    shapes = [(str(tensor.dtype), list(tensor.shape)) for tensor in tensors]
    values = [v if isinstance(v, str | int | float | bool) else None for v in plain]
    of_ranks = gather_json((shapes, values), group)
    if group.rank():
        for tensor in tensors:
            group.send([tensor.contiguous()], 0, 0).wait()
        return None
    return [
        batches if rank == 0 else _received(batches, shapes_there, values_there, rank, group)
        for rank, (shapes_there, values_there) in enumerate(of_ranks)
    ]


def _received(
    own: Any, shapes: list[Any], values: list[Any], rank: int, group: "dist.ProcessGroup"
) -> Any:
    left_shapes, left_values = iter(shapes), iter(values)

    def receive(_: torch.Tensor) -> torch.Tensor:
        name, shape = next(left_shapes)
        tensor = torch.empty(shape, dtype=dtype_of(name))
        group.recv([tensor], rank, 0).wait()
        return tensor

    def plain(mine: Any) -> Any:
        value = next(left_values)
        return mine if value is None else value

    return map_tensors(receive, own, other=plain)
