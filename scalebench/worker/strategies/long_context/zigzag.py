"""The zigzag order: which tokens a rank has, and which of its queries see whose keys.

Attention is causal, so later tokens see more keys, and ranks with consecutive parts of a sequence
would have unequal work: the last one about N times that of the first. So the sequence is cut into
2N chunks, and rank r has chunk r and chunk 2N−1−r: one early, one late (Brandon et al. 2023,
"Striped Attention", names the problem; Dubey et al. 2024 (Llama 3), §3.3.2, has these chunks).

For every pair of ranks the work is the same then. Keys of a lower rank j < r: chunk j comes before
both chunks of r, chunk 2N−1−j after both. Keys of a higher rank j > r: both chunks come after chunk
r and before chunk 2N−1−r. In either case half of the rectangle is left, and needs no mask.
"""

from typing import NamedTuple


class Block(NamedTuple):
    """A part of a rank's attention: its queries, and the keys of one rank.

    Attributes:
        queries: Which of the rank's tokens ask.
        keys: Which of the other's tokens they see.
        causal: Whether each sees only those up to its own place; otherwise all.
    """

    queries: slice
    keys: slice
    causal: bool


def places_in_zigzag(tokens: int, ranks: int, rank: int) -> list[int]:
    """Return where in the sequence the tokens of a rank are, in order.

    Args:
        tokens: Of the whole sequence; 2 · ranks divides it.
        ranks: N.
        rank: Of those.
    """
    size = tokens // (2 * ranks)
    late = 2 * ranks - 1 - rank
    return [*range(rank * size, (rank + 1) * size), *range(late * size, (late + 1) * size)]


def places_in_order(tokens: int, ranks: int, rank: int) -> list[int]:
    """Return where in the sequence the tokens of a rank are, where its part is in one piece.

    Args:
        tokens: Of the whole sequence; ``ranks`` divides it.
        ranks: N.
        rank: Of those.
    """
    size = tokens // ranks
    return list(range(rank * size, (rank + 1) * size))


def block(rank: int, source: int, tokens: int) -> Block:
    """Return what a rank computes with the keys and values of a rank.

    Args:
        rank: Who asks.
        source: Whose keys.
        tokens: Of each rank; 2 divides it.
    """
    everything, half = slice(0, tokens), tokens // 2
    if source == rank:
        return Block(everything, everything, causal=True)  # in a rank the order is that of places
    if source < rank:
        return Block(everything, slice(0, half), causal=False)
    return Block(slice(half, tokens), everything, causal=False)
