"""The collectives that can be timed, by the names of their operations, dtypes and algorithms."""

from typing import Literal, get_args

CollectiveName = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_uneven",
    "broadcast",
    "reduce",
    "send_recv",
    "send_recv_ring",
    "barrier",
]
COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)
ONLY_IN_PLACE = ("all_reduce", "broadcast", "reduce")
"""What torch.distributed does in place; it offers no other way."""
EITHER_PLACE = ("all_gather", "reduce_scatter")
"""What may read its input from where its result goes, or from elsewhere."""
IN_GROUPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv_ring")
"""What groups of fewer than all ranks can be timed doing by themselves."""

DtypeName = Literal["float32", "bfloat16", "int8"]
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)

BACKEND = "backend"
"""The algorithm that is whatever the backend does."""
AlgorithmName = Literal[
    "ring",
    "halving-doubling",
    "tree",
    "double-tree",
    "hierarchical",
    "gather-broadcast",
    "parameter-server",
]
OWN_ALGORITHMS: tuple[AlgorithmName, ...] = get_args(AlgorithmName)
"""All-reduces of ``worker/collectives``, which only a worker imports: it imports torch."""
