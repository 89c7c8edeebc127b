"""Horovod: ``DistributedOptimizer`` reduces each gradient, fused with others into one buffer.

Horovod brings processes together by itself, beside torch's process group: rank 0 serves the
addresses, as ``horovodrun`` does it. Its operations are its own, so traces do not show them.
Source: Sergeev and Del Balso 2018; Horovod's documentation, "Horovod with PyTorch" and "Tensor
fusion".
"""

import os
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from scalebench.spec import Horovod
from scalebench.spec.workload import Workload
from scalebench.worker.frameworks.surroundings import (
    framework_facts,
    look_like_torchrun,
    sum_of_parts,
)
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.base import named_gradients
from scalebench.worker.strategies.execution import make_optimizer, precision, prepare_module
from scalebench.worker.workloads.batches import split

SHIPPED_MB = 128


class HorovodTraining:
    """The model as it is, its optimizer in ``DistributedOptimizer``."""

    def __init__(self, strategy: Horovod, workload: Workload, context: RankContext) -> None:
        self.strategy = strategy
        self.device = context.device
        self.loss = workload.loss
        self.module = prepare_module(workload, strategy, context.device)
        self.optimizer = make_optimizer(workload, self.module.parameters())
        self._server = connect(strategy, context)
        import horovod.torch as hvd

        compression = hvd.Compression.fp16 if strategy.compression == "fp16" else None
        self.prepared = hvd.DistributedOptimizer(
            self.optimizer,
            named_parameters=self.module.named_parameters(),
            compression=compression or hvd.Compression.none,
            backward_passes_per_step=strategy.accumulate,
            op=hvd.Average,
        )
        hvd.broadcast_parameters(self.module.state_dict(), root_rank=0)
        threshold_mb = SHIPPED_MB if strategy.bucket_mb is None else strategy.bucket_mb
        settings = {"fusion_threshold_mb": threshold_mb, "compression": strategy.compression}
        self.facts = framework_facts(strategy, settings | {"average": "mean over ranks"})

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch, in ``accumulate`` microbatches."""
        self.prepared.zero_grad()
        losses = []
        for microbatch in split(batch, self.strategy.accumulate):
            with precision(self.strategy, self.device):
                loss = self.loss(self.module, microbatch)
            (loss / self.strategy.accumulate).backward()
            losses.append(loss.detach())
        self.prepared.step()
        return sum_of_parts(losses)

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the averaged gradients of the last step; every rank holds all of them."""
        return named_gradients(self.module)

    def finish(self) -> None:
        """End Horovod's thread, and the server of addresses."""
        import horovod.torch as hvd

        hvd.shutdown()
        if self._server is not None:
            self._server.stop()


def connect(strategy: Horovod, context: RankContext) -> Any:
    """Initialise Horovod over gloo; return the server of addresses on rank 0, None elsewhere."""
    look_like_torchrun(context)
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    world_size = context.cell.world_size
    server = RendezvousServer() if context.rank == 0 else None
    port = [0]
    if server is not None:
        port = [server.start()]
        server.init(get_host_assignments(parse_hosts(f"localhost:{world_size}"), world_size))
    dist.broadcast_object_list(port, src=0, group=context.control)
    os.environ.update(variables(strategy, context, port[0]))
    import horovod.torch as hvd

    hvd.init()
    return server


def variables(strategy: Horovod, context: RankContext, port: int) -> dict[str, str]:
    """Return the variables that ``horovodrun`` sets on one machine."""
    rank, size = str(context.rank), str(context.cell.world_size)
    found = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": rank,
        "HOROVOD_LOCAL_SIZE": size,
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_HOSTNAME": "localhost",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    if strategy.bucket_mb is not None:
        found["HOROVOD_FUSION_THRESHOLD"] = str(round(strategy.bucket_mb * 2**20))
    return found
