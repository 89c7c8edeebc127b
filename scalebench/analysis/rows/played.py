"""What ranks played of a row without its model, at the number of ranks nearest to the row's."""

import math
from typing import TypeVar

from scalebench.costmodel.links.times import LinkModel
from scalebench.costmodel.rehearsed_step import longer_than_replayed_s
from scalebench.records.probes import RehearsedPipeline, RehearsedStep
from scalebench.spec import Cell

P = TypeVar("P", RehearsedPipeline, RehearsedStep)


def nearest_played(kind: type[P], link: LinkModel, cell: Cell) -> P | None:
    """Return what was played of a cell's case; None: nothing was."""
    own = [
        each
        for each in link.rehearsals
        if isinstance(each, kind) and (each.suite, each.case) == (cell.suite, cell.case)
    ]
    return min(
        own, key=lambda each: abs(math.log2(each.world_size / cell.world_size)), default=None
    )


def longer_beside_work_s(link: LinkModel, cell: Cell) -> float | None:
    """Return how much longer than replayed a step's messages took beside work; None: not played.

    Raises:
        NoFit: Nothing tells what an operation takes.
    """
    played = nearest_played(RehearsedStep, link, cell)
    return None if played is None else longer_than_replayed_s(played, link.time)
