"""Horovod: ``DistributedOptimizer`` reduces each gradient, fused with others into one buffer.

Horovod brings processes together by itself, beside torch's process group: rank 0 serves the
addresses, as ``horovodrun`` does it. Its operations are its own, so traces do not show them.
Source: Sergeev and Del Balso 2018; Horovod's documentation, "Horovod with PyTorch" and "Tensor
fusion".
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from scalebench.spec import Horovod
from scalebench.spec.workload import Workload
from scalebench.worker.frameworks.horovod_places import (
    Host,
    host_place,
    refuse_without_addresses,
    refuse_without_nccl,
    this_host,
    variables,
)
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
UNCOUNTED = "its fusion buffer, which Horovod's own thread allocates"


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
        settings: dict[str, Any] = {"fusion_threshold_mb": threshold_mb}
        settings["compression"] = strategy.compression
        settings |= {"average": "mean over ranks", "operations": operations(hvd, context)}
        on_cpu = context.device.type == "cpu"
        uncounted = UNCOUNTED if on_cpu and context.cell.world_size > 1 else None
        self.facts = framework_facts(strategy, settings, uncounted)

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


def operations(hvd: Any, context: RankContext) -> str:
    """Return the library that reduces, as Horovod was built."""
    return "nccl" if context.device.type == "cuda" and hvd.nccl_built() else "gloo"


def connect(strategy: Horovod, context: RankContext) -> Any:
    """Initialise Horovod over gloo; return the server of addresses on rank 0, None elsewhere.

    Raises:
        Unsupported: A rank's device, or its address, is out of Horovod's reach.
    """
    look_like_torchrun(context)
    import horovod.torch as hvd

    refuse_without_nccl(context.device.type, hvd.nccl_built())
    hosts = all_of(this_host(), context)
    refuse_without_addresses(hosts)
    server, port = served(hosts, context)
    os.environ.update(variables(strategy, host_place(hosts, context.rank), hosts, port))
    hvd.init()
    return server


def all_of(mine: Host, context: RankContext) -> list[Host]:
    """Return every rank's host, on every rank."""
    return [Host(*host) for host in context.gather(mine)]


def served(hosts: Sequence[Host], context: RankContext) -> tuple[Any, int]:
    """Start the server of addresses on rank 0; return it, None elsewhere, and its port."""
    from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
    from horovod.runner.http.http_server import RendezvousServer

    server = RendezvousServer() if context.rank == 0 else None
    port = 0
    if server is not None:
        port = server.start()
        slots = Counter(host.address for host in hosts)
        plan = ",".join(f"{address}:{number}" for address, number in slots.items())
        server.init(get_host_assignments(parse_hosts(plan), len(hosts)))
    return server, int(context.gather(port)[0])
