"""The collectives of a compressed step with all ranks in one process."""

from collections.abc import Sequence

import torch

from scalebench.worker.strategies.compression.codec import CollectiveCall, Rounds


def run_in_lockstep(ranks: Sequence[Rounds]) -> None:
    """Carry out the rounds of all ranks together until every rank is done.

    Args:
        ranks: One generator for each rank, in their order, not started yet.

    Raises:
        ValueError: The ranks do not ask for the same collective, which would hang real ones.
    """
    requests = [_next(rounds, None) for rounds in ranks]
    while any(request is not None for request in requests):
        asked = [request for request in requests if request is not None]
        if len({(r.collective, r.largest, r.num_bytes, r.wire.dtype) for r in asked}) > 1:
            raise ValueError("the ranks ask for different collectives")
        if len(asked) < len(ranks):
            raise ValueError("some ranks are done and others are not")
        requests = [_next(rounds, answer(asked)) for rounds in ranks]


def _next(rounds: Rounds, reply: Sequence[torch.Tensor] | None) -> CollectiveCall | None:
    try:
        return next(rounds) if reply is None else rounds.send(reply)
    except StopIteration:
        return None


def answer(requests: Sequence[CollectiveCall]) -> list[torch.Tensor]:
    """Return what the collective that all ranks ask for gives each of them.

    The result has its own memory for every call: ranks write to what they are sent.
    """
    wires = [request.wire for request in requests]
    if requests[0].collective == "all_gather":
        return [wire.clone() for wire in wires]
    total = wires[0].clone()
    for wire in wires[1:]:
        total = torch.maximum(total, wire) if requests[0].largest else total.add_(wire)
    return [total]
