"""What NCCL's log says of the wires that it took: transports, adapters, channels, algorithms."""

from pydantic import Field

from scalebench.records.base import LARGE
from scalebench.records.rows.base import RowPart

Pair = tuple[int, int]
"""Sender and receiver, as NCCL numbers the ranks of their communicator."""


class NodeLinks(RowPart):
    """What the machine itself says of its links, whatever NCCL makes of them.

    Attributes:
        host: As NCCL spells it: up to the first dot.
        adapters: Active ports of InfiniBand and RoCE adapters in sysfs: ``mlx5_0:1``.
        nvlinks: Pairs of GPUs, by their number in nvidia-smi, that its topology joins by NVLink.
            Null: nvidia-smi did not answer.
        num_gpus: In that topology.
    """

    host: str
    adapters: list[str]
    nvlinks: list[Pair] | None = None
    num_gpus: int = 0


class Transport(RowPart):
    """The pairs of ranks that use one transport.

    Attributes:
        name: ``P2P/NVLink``, ``P2P/PCIe``, ``P2P`` (nothing says over which of the two), ``SHM``,
            ``NET/IB``, ``NET/Socket``, or what else NCCL calls it.
        pairs: In order, each once.
        adapters: Adapters or interfaces, as far as the log has their names; else their numbers.
        gdr: Whether the adapters read and write GPU memory by themselves (GPUDirect RDMA). Null:
            the transport uses no adapter that could.
    """

    name: str
    pairs: list[Pair]
    adapters: list[str] = []
    gdr: bool | None = None


class NodeWires(RowPart):
    """What NCCL says of one node.

    Attributes:
        num_ranks: That wrote the log there.
        adapters: InfiniBand and RoCE ports that NCCL found.
        interfaces: That NCCL found for its sockets.
        used: Of both, those that a channel goes through.
        links: What the machine says itself; null: it was not asked.
    """

    host: str
    num_ranks: int = Field(ge=0, lt=LARGE)
    adapters: list[str] = []
    interfaces: list[str] = []
    used: list[str] = []
    links: NodeLinks | None = None


class WireFinding(RowPart):
    """A wire that is slower than what the machine has, and what to set.

    Attributes:
        rule: ``sockets``, ``no nvlink``, ``no gdr``, ``few adapters`` or ``interface``.
    """

    rule: str
    text: str
    remedy: str


class NcclWires(RowPart):
    """The wires of one launch, from NCCL's own log. Null and empty: the log does not say.

    Attributes:
        version: Of NCCL.
        network: What NCCL chose between nodes, whether or not anything goes over it.
        num_channels: For collectives; of several communicators the largest number.
        algorithms: For which NCCL connected the ranks, and those that it names for a call.
        communicator_sizes: Ranks in each; with several, a pair's numbers are those of its own.
        transports: What pairs of ranks are joined by.
        nvlink_unused: Pairs that NVLink joins and whose messages go another way.
        nodes: By name.
        failed: The log has a connection that failed.
        findings: What is wrong; in a row of the summary.
    """

    version: str | None = None
    network: str | None = None
    num_channels: int | None = Field(None, ge=1, lt=LARGE)
    algorithms: list[str] = []
    communicator_sizes: list[int] = []
    transports: list[Transport] = []
    nvlink_unused: list[Pair] = []
    nodes: list[NodeWires] = []
    failed: bool = False
    findings: list[WireFinding] = []
