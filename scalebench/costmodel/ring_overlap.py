"""What ring attention hides: a message is on the way while the rank computes one turn.

In each of N turns a rank computes with the keys and values of one rank, while those of the next
come. In backward their gradients go on a turn later; the last ones are waited for, as nothing is
left to compute (Liu et al. 2023, §3).
"""

from collections.abc import Iterator, Sequence
from itertools import chain, repeat
from typing import NamedTuple

from scalebench.costmodel.context_layers import AttendingModel
from scalebench.costmodel.replay import CommRequest


class Turns(NamedTuple):
    """What a rank computes in one turn of an attention, seconds; measured on its shard alone."""

    forward_s: float
    backward_s: float

    def slowed(self, factor: float) -> "Turns":
        """Return turns that take ``factor`` times as long."""
        return Turns(factor * self.forward_s, factor * self.backward_s)


def messages_in_forward(ranks: int) -> list[int]:
    """Return how many messages are on the way in each of N turns."""
    return [1 if turn + 1 < ranks else 0 for turn in range(ranks)]


def messages_in_backward(ranks: int) -> list[int]:
    """Return the same for backward, and how many are waited for behind the last turn."""
    return [(turn + 1 < ranks) + (turn >= 2) for turn in range(ranks)] + [1]


def ring_requests(
    model: AttendingModel, ranks: int, rank_batch: int, turns: Turns, step_s: float
) -> list[CommRequest]:
    """Return the messages of a step's attention, each needed a turn after it is sent.

    The turns follow one another from the beginning of the step. In truth other layers are between
    them, which neither send nor wait.

    Args:
        model: Whose attention.
        ranks: Of a group.
        rank_batch: Samples of a group's step.
        turns: What a rank computes meanwhile.
        step_s: The step's computation; turns that do not fit into it are cut off.
    """

    def sizes(whole: Sequence[int]) -> list[int]:
        return [2 * size * rank_batch // (model.samples * ranks) for size in whole]

    forward, again = sizes(model.attention_bytes), sizes(model.recomputed_bytes)
    passes = chain(
        zip([*forward, *again], repeat((messages_in_forward(ranks), turns.forward_s))),
        zip(reversed(forward), repeat((messages_in_backward(ranks), turns.backward_s))),
    )
    return list(_requests(passes, ranks, step_s))


def _requests(
    passes: "chain[tuple[int, tuple[list[int], float]]]", ranks: int, step_s: float
) -> Iterator[CommRequest]:
    now_s = 0.0
    for size, (counts, turn_s) in passes:
        for turn, count in enumerate(counts):
            until_s = now_s + turn_s if turn < ranks else now_s
            at, needed = min(now_s, step_s), min(until_s, step_s)
            for _ in range(count):
                yield CommRequest("send_recv_ring", size, at, needed, ranks)
            now_s = until_s
