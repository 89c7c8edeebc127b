"""What a rank sends and receives, as data: it can be printed and checked without a process.

A schedule is a list of steps, each a tuple of messages that may be in flight at once. Ranks write
into the one vector that they all hold; a message is a piece of it. Two rules make a set of
schedules, one per rank, free of deadlock whatever is buffered, and every algorithm here keeps
them:

- Were each rank to finish a step before it begins the next, all would still come to the end.
- Two ranks name the messages between them in the same order on both sides.

A third makes it safe to have many steps in flight: what overwrites a piece that was sent depends
on that piece, so it cannot arrive before the piece has left.

Every element is summed on one rank and copied from there: the result is the same on all ranks, bit
for bit. A ring sums in its own order; a server, and the root of a gather, in that of the ranks.

Within a step receives stand first where it is all the same: a peer that knows that it may send
does not have to ask.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple


class Piece(NamedTuple):
    """Elements ``start`` to ``stop`` (exclusive) of the vector."""

    start: int
    stop: int

    @property
    def length(self) -> int:
        """Number of elements."""
        return self.stop - self.start

    def overlaps(self, other: "Piece") -> bool:
        """Return whether the two have an element in common."""
        return self.start < other.stop and other.start < self.stop


@dataclass(frozen=True, slots=True)
class Send:
    """Hand ``piece`` to ``peer``, a rank of the group."""

    peer: int
    piece: Piece


@dataclass(frozen=True, slots=True)
class Receive:
    """Take ``piece`` from ``peer``: added to what is here, or in place of it."""

    peer: int
    piece: Piece
    add: bool


Message = Send | Receive
Step = tuple[Message, ...]
Schedule = Iterable[Step]


def bounds(whole: Piece, num_parts: int, part: int) -> Piece:
    """Return one of ``num_parts`` parts of ``whole``, which cover it in order without a gap.

    Lengths differ by one at most, the longer parts come first; parts are empty where there are
    more of them than elements.
    """
    each, rest = divmod(whole.length, num_parts)
    start = whole.start + part * each + min(part, rest)
    return Piece(start, start + each + (part < rest))


def num_segments(longest: int, segment: int) -> int:
    """Return in how many segments of at most ``segment`` elements to cut a piece, at least one.

    Args:
        longest: Length of the longest piece that is under way at that time on any rank: all have
            to cut alike, so that their steps match.
        segment: Elements, at least 1.
    """
    return max(1, -(-longest // segment))


def side_by_side(*schedules: Schedule) -> Iterator[Step]:
    """Run schedules at once: step by step, the messages of the first go first."""
    for steps in zip_longest(*schedules, fillvalue=()):
        yield tuple(message for step in steps for message in step)
