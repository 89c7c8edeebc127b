"""Horovod: ``DistributedOptimizer`` reduces each gradient, fused with others into one buffer.

Horovod brings processes together by itself, next to torch's process group: rank 0 serves the
addresses, and variables say where the processes are, as ``horovodrun`` does it. Its operations are
its own, so traces do not show them. Source: Sergeev and Del Balso 2018; Horovod's documentation,
"Horovod with PyTorch", "Tensor fusion" and "Gloo rendezvous".
"""

import os
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from scalebench.grouping import by_key
from scalebench.spec import Horovod
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.script.errors import own_address
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.frameworks.surroundings import framework_facts, look_like_torchrun
from scalebench.worker.workloads.batches import split

LOOPBACK = "127.0.0.1"


class Host(NamedTuple):
    """Where a rank is.

    Attributes:
        name: Of the machine; virtual hosts share it.
        address: On the interface that gloo uses.
        address_of_name: What the name resolves to on the machine itself.
    """

    name: str
    address: str
    address_of_name: str


def this_host() -> Host:
    """Return where this process is."""
    name = socket.gethostname()
    try:
        address_of_name = socket.gethostbyname(name)
    except OSError:
        address_of_name = LOOPBACK
    return Host(name, own_address(), address_of_name)


def refuse_without_nccl(device: str, has_nccl: bool) -> None:
    """Refuse GPUs where Horovod was built for gloo alone: it ends the process there.

    Raises:
        Unsupported: It was.
    """
    if device == "cuda" and not has_nccl:
        raise Unsupported(
            "this Horovod was built without NCCL and cannot reduce on GPUs; build it with "
            "rm -rf dist/horovod-* && HOROVOD_GPU_OPERATIONS=NCCL make horovod, or run with "
            "--device cpu"
        )


def refuse_without_addresses(hosts: Sequence[Host]) -> None:
    """Refuse several hosts of which one could be reached at a loopback address only.

    Horovod 0.28.1 connects its process sets at the address of the host's name, whatever interface
    it is told to use (``GlooContext::InitializeForProcessSet``).

    Raises:
        Unsupported: One could not be reached.
    """
    if len(set(hosts)) == 1:
        return
    for host in hosts:
        if host.address.startswith("127."):
            raise Unsupported(
                f"Horovod has no address of {host.name} but {host.address}, which other hosts "
                "cannot reach; set GLOO_SOCKET_IFNAME to an interface that connects them, for "
                "example GLOO_SOCKET_IFNAME=eth0"
            )
        if host.address_of_name.startswith("127."):
            raise Unsupported(
                f"Horovod connects at the address of the host name, and {host.name} is "
                f"{host.address_of_name}, which other hosts cannot reach; give it the address of "
                "its network in /etc/hosts (on virtual hosts, --launcher lab, Horovod does not run)"
            )


def host_place(hosts: Sequence[Host], rank: int) -> dict[str, int]:
    """Return where a rank stands on its host and among hosts, as Horovod counts it.

    Returns:
        ``LOCAL_RANK`` and ``LOCAL_SIZE``, among the ranks of its host; ``CROSS_RANK`` and
        ``CROSS_SIZE``, among the ranks with the same local rank.
    """
    on_host = by_key((host, number) for number, host in enumerate(hosts))
    here = on_host[hosts[rank]]
    local_rank = here.index(rank)
    across = [ranks[local_rank] for ranks in on_host.values() if len(ranks) > local_rank]
    return {
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": len(here),
        "CROSS_RANK": across.index(rank),
        "CROSS_SIZE": len(across),
    } | {"RANK": rank, "SIZE": len(hosts)}


def variables(
    strategy: Horovod, place: Mapping[str, int], hosts: Sequence[Host], port: int
) -> dict[str, str]:
    """Return the variables that ``horovodrun`` sets.

    ``place``: see `host_place`. ``hosts`` are by rank; the first one serves the addresses at
    ``port``.
    """
    found = {f"HOROVOD_{name}": str(number) for name, number in place.items()} | {
        "HOROVOD_HOSTNAME": hosts[place["RANK"]].address,
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": hosts[0].address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": os.environ.get("GLOO_SOCKET_IFNAME", "lo").partition(",")[0],
    }
    if strategy.bucket_mb is not None:
        found["HOROVOD_FUSION_THRESHOLD"] = str(round(strategy.bucket_mb * 2**20))
    return found


SHIPPED_MB = 128
UNCOUNTED = "its fusion buffer, which Horovod's own thread allocates"


class HorovodTraining(Training):
    """The model as it is, its optimizer in ``DistributedOptimizer``."""

    def __init__(self, strategy: Horovod, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.module = prepare_module(workload, strategy, context.device)
        self.optimizer = make_optimizer(workload, self.module.parameters())
        self._server = connect(strategy, context)
        import horovod.torch as hvd

        compression = hvd.Compression.fp16 if strategy.compression == "fp16" else None
        self.stepper = hvd.DistributedOptimizer(
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

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add the gradient of a batch, in ``accumulate`` microbatches."""
        microbatches = split(batch, self.strategy.accumulate)
        losses = [
            super(HorovodTraining, self).forward_backward(b, len(microbatches))
            for b in microbatches
        ]
        return torch.stack(losses).sum() if len(losses) > 1 else losses[0]

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
    hosts = [Host(*host) for host in context.gather(this_host())]
    refuse_without_addresses(hosts)
    server, port = served(hosts, context)
    os.environ.update(variables(strategy, host_place(hosts, context.rank), hosts, port))
    hvd.init()
    return server


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
