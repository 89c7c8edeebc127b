"""All-reduce by hand, over point-to-point messages: one short file for each algorithm.

Each has a schedule, the messages of one rank as data, and an all-reduce, see
`execute.reduce_in_place`, which carries the schedule out. The backends' own all-reduces are black
boxes that choose by size; these run the algorithm they are named after.
"""

from collections.abc import Callable

from scalebench.worker.collectives import central, halving_doubling, hierarchical, ring, tree

ALL_REDUCES: dict[str, Callable[..., None]] = {
    "ring": ring.all_reduce,
    "halving-doubling": halving_doubling.all_reduce,
    "tree": tree.all_reduce,
    "double-tree": tree.double_all_reduce,
    "hierarchical": hierarchical.all_reduce,
    "gather-broadcast": central.gather_all_reduce,
    "parameter-server": central.all_reduce,
}
"""Called as ``all_reduce(tensor, group, **options)``; the options are those of the schedule."""
