"""What ranks of a context parallel or an expert group send in a step: every operation, in order.

What the ranks of a context parallel group send each other in a step: every operation, in order.

Only attention communicates, and the gradients after the backward pass. For each attention, with b
samples of s tokens, width h, N ranks and E = b·s·h/N elements, the queries of a rank:

Ulysses: all-to-alls of 3·E (queries, keys, values) and of E (the result) in forward, and of their
gradients in backward: 8·E in four operations (Jacobs et al. 2023, §3.2, count the forward).

Ring: N−1 messages of 2·E (keys and values) in forward; in backward these again, and N−1 of 2·E with
their gradients: 6·(N−1)·E (Liu et al. 2023, §3, count the forward).

Gradients: one all-reduce of all of them over all ranks. Where the forward of a block is recomputed,
what it sends is sent again.

What the ranks of an expert group send each other in a step.

Every layer sends the tokens to their experts and the results back, and in the backward pass the
gradients on the same ways: four all-to-alls (Lepikhin et al. 2020, §3.3). With k experts a token,
each hands in k rows for every token of the rank. That is exact where no token is dropped and, of
the way back, where a rank gets as many tokens as it sends. What really went follows from the
recorded numbers of tokens. Before them goes a small one that tells how many tokens will come.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any, NamedTuple

from scalebench.costmodel.step import CommRequest
from scalebench.costmodel.tensor_layers import FP32_BYTES, NoLaw, Operation
from scalebench.spec import Context, Expert
from scalebench.spec.presets import GptShape, MoeShape

COUNT_BYTES = 8
"""Of the number of tokens for one expert, int64."""


@dataclass(frozen=True)
class AttendingModel:
    """A model as context parallel training divides it: what the first step of a rank has shown.

    Attributes:
        attention_bytes: Queries of each attention in forward, whole sequences of all samples.
        recomputed_bytes: The same of those whose forward the backward pass does again.
        gradient_bytes: All gradients; every rank has all of them.
        samples: Of the batch on which that was.
    """

    attention_bytes: tuple[int, ...]
    recomputed_bytes: tuple[int, ...]
    gradient_bytes: int
    samples: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "AttendingModel":
        """Return the model of a rank's facts.

        Raises:
            NoLaw: They do not tell.
        """
        told = facts.get("context")
        if not told:
            raise NoLaw("no step has shown what attention is called with")
        return cls(
            attention_bytes=tuple(told["attention_bytes"]),
            recomputed_bytes=tuple(told["recomputed_bytes"]),
            gradient_bytes=told["gradient_bytes"],
            samples=told["samples"],
        )

    @classmethod
    def of_preset(cls, shape: GptShape, samples: int) -> "AttendingModel":
        """Return a built-in model in float32, before anything was run.

        A test compares it with what a step shows.
        """
        each = FP32_BYTES * samples * shape.context * shape.width
        return cls((each,) * shape.layers, (), FP32_BYTES * shape.num_parameters, samples)


def operations_of_context_step(
    strategy: Context, model: AttendingModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, in order.

    Args:
        strategy: How the sequence is divided.
        model: Whose.
        world_size: N.
        rank_batch: Samples of a group's step.
    """
    ranks = strategy.ranks_per_group(world_size)
    groups = world_size // ranks

    found = operations_of_attention(strategy, model, ranks, rank_batch) if ranks > 1 else []
    if world_size > 1:
        axis = gradient_axis(groups, ranks)
        size = model.gradient_bytes
        found.append(Operation("all_reduce", size, axis, world_size, "gradients"))
    return found


def operations_of_attention(
    strategy: Context, model: AttendingModel, ranks: int, rank_batch: int, tensor_ranks: int = 1
) -> list[Operation]:
    """Return what a rank's attentions send in forward and backward.

    Args:
        strategy: How the sequence is divided.
        model: Whose.
        ranks: Among which the sequence is divided, more than one.
        rank_batch: Samples of a group's step.
        tensor_ranks: Among which the heads are divided.
    """
    parts = model.samples * ranks * tensor_ranks
    attention = [size * rank_batch // parts for size in model.attention_bytes]
    again = [size * rank_batch // parts for size in model.recomputed_bytes]
    found = [op for size in attention for op in _forward(strategy, size, ranks, "forward")]
    found += [op for size in again for op in _forward(strategy, size, ranks, "backward")]
    return found + [op for size in reversed(attention) for op in _backward(strategy, size, ranks)]


def gradient_axis(groups: int, ranks: int) -> str:
    """Return along which dimensions of the mesh gradients go: all that have several ranks."""
    if groups == 1:
        return "context"
    return "data" if ranks == 1 else "data_context"


def _forward(strategy: Context, part: int, ranks: int, phase: str) -> list[Operation]:
    if strategy.method == "ring":
        return [_ring(part, ranks, phase)] * (ranks - 1)
    return [_all_to_all(size, ranks, phase) for size in (3 * part, part)]


def _backward(strategy: Context, part: int, ranks: int) -> list[Operation]:
    if strategy.method == "ring":
        return [_ring(part, ranks, "backward")] * (2 * (ranks - 1))
    return [_all_to_all(size, ranks, "backward") for size in (part, 3 * part)]


def _all_to_all(num_bytes: int, ranks: int, phase: str) -> Operation:
    return Operation("all_to_all", num_bytes, "context", ranks, phase)


def _ring(part: int, ranks: int, phase: str) -> Operation:
    return Operation("send_recv_ring", 2 * part, "context", ranks, phase)


class RingWork(NamedTuple):
    """What a rank computes in one turn of an attention, seconds; measured on its shard alone."""

    forward_s: float
    backward_s: float

    def slowed(self, factor: float) -> "RingWork":
        """Return turns that take ``factor`` times as long."""
        return RingWork(factor * self.forward_s, factor * self.backward_s)


def messages_in_forward(ranks: int) -> list[int]:
    """Return how many messages are on the way in each of N turns."""
    return [1 if turn + 1 < ranks else 0 for turn in range(ranks)]


def messages_in_backward(ranks: int) -> list[int]:
    """Return the same for backward, and how many are waited for behind the last turn."""
    return [(turn + 1 < ranks) + (turn >= 2) for turn in range(ranks)] + [1]


def ring_requests(
    model: AttendingModel, ranks: int, rank_batch: int, work: RingWork, step_s: float
) -> list[CommRequest]:
    """Return the messages of a step's attention, each needed a turn after it is sent.

    The turns follow one another from the beginning of the step. In truth other layers are between
    them, which neither send nor wait.

    Args:
        model: Whose attention.
        ranks: Of a group.
        rank_batch: Samples of a group's step.
        work: What a rank computes meanwhile.
        step_s: The step's computation; turns that do not fit into it are cut off.
    """

    def sizes(whole: Sequence[int]) -> list[int]:
        return [2 * size * rank_batch // (model.samples * ranks) for size in whole]

    forward, again = sizes(model.attention_bytes), sizes(model.recomputed_bytes)
    passes = chain(
        zip([*forward, *again], repeat((messages_in_forward(ranks), work.forward_s))),
        zip(reversed(forward), repeat((messages_in_backward(ranks), work.backward_s))),
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


@dataclass(frozen=True)
class ExpertModel:
    """A model with experts: what the steps of a rank have shown.

    Attributes:
        experts: In each layer.
        rows: Of each layer: tokens of the rank's batch times the experts that each chose.
        row_bytes: Of one row on its way.
        samples: Of the rank's batch.
        replicated: Elements that every rank has.
        in_experts: Elements of all experts together.
    """

    experts: int
    rows: tuple[int, ...]
    row_bytes: int
    samples: int
    replicated: int
    in_experts: int

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "ExpertModel":
        """Return the model of a rank's facts.

        Raises:
            NoLaw: They do not tell.
        """
        load = facts.get("expert_load")
        if not load or not load["chosen"]:
            raise NoLaw("no step has shown how many tokens the experts get")
        first = load["chosen"][0]
        return cls(
            experts=len(first[0]),
            rows=tuple(sum(layer) for layer in first),
            row_bytes=load["row_bytes"],
            samples=load["samples"],
            replicated=facts["replicated_elements"],
            in_experts=facts["expert_elements"] * load["ranks"],
        )

    @classmethod
    def of_preset(cls, shape: MoeShape, samples: int) -> "ExpertModel":
        """Return the model of a preset, float32, on so many samples of a rank."""
        in_experts = shape.layers * shape.experts * shape.expert_parameters
        return cls(
            experts=shape.experts,
            rows=(shape.top_k * shape.context * samples,) * shape.layers,
            row_bytes=FP32_BYTES * shape.width,
            samples=samples,
            replicated=shape.num_parameters - in_experts,
            in_experts=in_experts,
        )


def operations_of_expert_step(
    strategy: Expert, model: ExpertModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, in order, where tokens spread evenly.

    DDP's buckets are one operation here. With recomputation of activations the forward pass is done
    twice, and so are its operations.

    Args:
        strategy: How the experts are divided.
        model: Whose.
        world_size: N.
        rank_batch: Samples of a rank's step.
    """
    ranks = strategy.ranks_per_group(world_size)
    found = []
    if ranks > 1:
        for phase in ("forward", *(["backward"] if strategy.checkpointing else [])):
            for rows in model.rows:
                counts = COUNT_BYTES * model.experts
                found.append(Operation("all_to_all", counts, "expert", ranks, phase))
                found += [_rows(model, rows, ranks, rank_batch, phase)] * 2
        for rows in reversed(model.rows):
            found += [_rows(model, rows, ranks, rank_batch, "backward")] * 2
    if world_size > 1:
        size = FP32_BYTES * model.replicated
        found.append(Operation("all_reduce", size, "data", world_size, "backward"))
    replicas = world_size // ranks
    if replicas > 1:
        size = FP32_BYTES * model.in_experts // ranks
        found.append(Operation("all_reduce", size, "replicas", replicas, "gradients"))
    return found


def _rows(model: ExpertModel, rows: int, ranks: int, rank_batch: int, phase: str) -> Operation:
    num_bytes = round(rows * rank_batch / model.samples) * model.row_bytes
    return Operation("all_to_all", num_bytes, "expert", ranks, phase)
