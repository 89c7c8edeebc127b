"""The search's formulas a second time: one candidate, plain numbers, every message written out.

Nothing here comes from the code under test but the job and the choice that are asked for.
"""

import math

from scalebench.search.choice import Choice
from scalebench.search.job import Job
from scalebench.search.model import SearchModel

INSIDE_S, INSIDE_RATE = 3.4e-6, 300e9
ACROSS_S, NODE_RATE, NODE = 14e-6, 1.25e9, 4
"""`jobs.TWO_LEVELS`: NVLink 3 inside nodes of four ranks, one link of 10 Gbit/s for each node."""

MESSAGES = {
    "all_reduce": lambda n: (2 * (n - 1), 2 * (n - 1) / n),
    "all_gather": lambda n: (n - 1, (n - 1) / n),
    "reduce_scatter": lambda n: (n - 1, (n - 1) / n),
    "all_to_all": lambda n: (n - 1, (n - 1) / n),
    "send_recv": lambda n: (1, 1),
    "send_recv_ring": lambda n: (1, 1),
}


def link_s(op: str, ranks: int, near: int, size: float) -> float:
    """Return the time of an operation on the two levels."""
    if ranks == 1:
        return 0.0
    messages, factor = MESSAGES[op](ranks)
    if near == ranks:
        return messages * INSIDE_S + factor * size / INSIDE_RATE
    flat = messages * ACROSS_S + factor * size / (NODE_RATE * near / NODE)
    if near == 1 or ranks % near or op not in ("all_reduce", "all_gather", "reduce_scatter"):
        return flat
    nodes, half = ranks // near, 1 if op == "all_reduce" else 0.5
    levels = 2 * (near - 1) * INSIDE_S + 2 * (near - 1) / near * size / INSIDE_RATE
    levels += 2 * (nodes - 1) * ACROSS_S
    levels += 2 * (nodes - 1) / nodes * size / near / (NODE_RATE / NODE)
    return min(flat, half * levels)


def near_ranks(choice: Choice) -> dict[str, int]:
    """Return how many ranks of each axis share a node."""
    usual = ("tensor", "context", "expert", "shard", "data", "pipeline")
    room, near = NODE, dict.fromkeys(usual, 1)
    for axis in (*choice.placement, *(a for a in usual if a not in choice.placement)):
        size = getattr(choice, axis)
        near[axis] = math.gcd(size, room)
        room = room // near[axis] if near[axis] == size else 1
    return near


def fullest_layers(model: SearchModel, stages: int) -> tuple[int, float]:
    """Return layers and forward FLOPs of the stage with most work, by trying every last stage."""
    h, i, s = model.width, model.inner, model.context
    mlp = (3 if model.gated else 2) * h * i * model.top_k
    router = h * model.experts if model.experts > 1 else 0
    attention = 2 * h * h + 2 * h * (h * model.kv_heads // model.heads)
    block = 2 * s * (attention + router + mlp) + 4 * s * s * h
    head = 2 * s * h * model.vocabulary
    if stages == 1:
        return model.layers, model.layers * block + head
    tried = []
    for last in range(model.layers - stages + 2):
        others = math.ceil((model.layers - last) / (stages - 1))
        tried.append((max(others * block, last * block + head), max(others, last)))
    work, layers = min(tried)
    return layers, work


class OneCandidate:
    """A choice of a job, and everything that the search says of it."""

    def __init__(self, job: Job, choice: Choice) -> None:
        self.job, self.choice, self.near = job, choice, near_ranks(choice)
        model, c = job.model, choice
        layers, flops = fullest_layers(model, c.pipeline * c.chunks)
        self.layers, self.flops = min(layers * c.chunks, model.layers), flops * c.chunks
        self.samples = job.batch / (c.data * c.shard * c.expert) / c.microbatches
        self.bytes_each = 2 if c.precision == "bfloat16" else 4
        expert = (3 if model.gated else 2) * model.width * model.inner
        attention = 2 * model.width**2 * (1 + model.kv_heads / model.heads)
        tables = 2 if c.pipeline == 1 and not model.tied else 1
        self.table = model.vocabulary * model.width
        routed = model.experts > 1
        block = attention + (model.width * model.experts if routed else expert)
        self.dense = (self.layers * block + tables * self.table) / c.tensor
        self.of_experts = 0.0
        if routed:
            self.of_experts = self.layers * model.experts * expert / c.expert / c.tensor
        whole = model.layers * (block + (model.experts * expert if routed else 0))
        self.whole_model = whole + (1 if model.tied else 2) * self.table
        self.share = self.layers / model.layers
        speed = job.speed.flop_s[c.precision]
        self.forward_flops_s = self.flops * self.samples / c.tensor / c.context * speed
        start = job.speed.pass_s * self.share
        for axis, seconds in job.speed.axis_s.items():
            if axis == "pipeline":
                start += seconds * c.chunks if c.pipeline > 1 else 0
            elif axis == "shard":
                start += seconds * self.share if c.zero >= 2 else 0
            elif getattr(c, axis) > 1:
                start += seconds * self.share
        self.forward_s = self.forward_flops_s + start / 3
        self.backward_s = 2 * self.forward_flops_s + 2 * start / 3
        self.again = 0
        if c.checkpointing != "none":  # a block has six groups of weights, each with its own call
            self.again = 1 + 6 if c.schedule == "zero-bubble" else 1
        once = self.forward_flops_s if c.checkpointing == "full" else 0.0
        measured = job.speed.recomputing.get(c.checkpointing)
        if measured is not None:
            once = measured.forwards * self.forward_flops_s + measured.pass_s * self.share
        self.backward_s += self.again * once
        self.weights_s = self.forward_flops_s + (self.again - 1 if self.again else 0) * once

        if c.schedule == "zero-bubble":
            self.backward_s += job.speed.split_s * self.share
            self.weights_s += job.speed.split_s * self.share / 2

    def memory_bytes(self) -> float:
        """Return the peak of the fullest rank."""
        return sum(self.memory_parts().values())

    def memory_parts(self) -> dict[str, float]:
        """Return the peak by what holds it."""
        job, model, c = self.job, self.job.model, self.choice
        own, s = self.dense + self.of_experts, c.shard
        state = {0: 16 * own, 1: 8 * own + 8 * own / s, 2: 4 * own + 12 * own / s,
                 3: 16 * own / s}[c.zero]  # fmt: skip
        each = job.gathered_bytes_each
        table = self.table / c.tensor
        block = (own - table) / self.layers
        gathered = 0.0
        if c.zero == 2:
            gathered = 4 * block + (each - 4) * (1 - 1 / s) * own
            gathered += 4 * (1 - 1 / s) * own if c.pipeline > 1 else 0
        elif c.zero == 3:
            gathered = each * 2 * (table + block) + 4 * block
        hop = model.context / c.context * model.width * self.samples * self.bytes_each
        hop /= c.tensor if job.sequence else 1
        received = 0.0
        if c.pipeline > 1:
            number = c.microbatches if job.receives_ahead else self.in_flight()
            received = 2 * hop * c.chunks * number
        return {"state": state, "gathered": gathered, "activations": self.activation_bytes(),
                "received": received, "held": job.held_bytes}  # fmt: skip

    def in_flight(self) -> float:
        """Return the microbatches whose activations a rank keeps."""
        c = self.choice
        p, m, v = c.pipeline, c.microbatches, c.chunks
        if p == 1:
            return 1
        if c.schedule in ("gpipe", "looped-bfs"):
            return m
        return (
            min(m, p * (1 + (p - 1) / (p * v))) if c.schedule == "interleaved-1f1b" else min(m, p)
        )

    def activation_bytes(self) -> float:
        """Return Korthikanti et al.'s table with t tensor ranks, without dropout."""
        model, c, t = self.job.model, self.choice, self.choice.tensor
        tokens = model.context / c.context * self.samples
        unit = tokens * model.width * self.bytes_each / 2
        keys, wide = model.kv_heads / model.heads, model.inner / model.width
        active = model.top_k if model.experts > 1 else 1
        norms = 8 / t if self.job.sequence else 8
        inputs = 2 / t if self.job.sequence else 2
        mlp = (8 if model.gated else 4) * wide * active
        products = (4 if model.gated else 2) * wide * active
        whole = norms + (4 + 4 * keys + mlp) / t
        kept = {"none": whole, "selective": inputs + (8 + 4 * keys + products) / t,
                "full": inputs}[c.checkpointing]  # fmt: skip
        once = unit * kept * self.layers
        again = unit * whole if c.checkpointing != "none" else 0
        # In float32 with their gradient; made in 16 bits, these are kept as well.
        logits = (10 if self.bytes_each == 2 else 8) * tokens * model.vocabulary / t
        # Four tensors of whole sequences where a group divides them.
        whole_sequences = 8 * unit * (1 - 1 / t) if self.job.sequence else 0.0
        fullest = once * self.in_flight() + logits
        if c.pipeline > 1 and c.schedule == "1f1b":
            # The first stage keeps the most microbatches, the last stage has the logits and one.
            fullest = max(once * self.in_flight(), once + logits)
        return self.job.activation_ratio * (fullest + again + whole_sequences)

    def parts_s(self) -> dict[str, float]:
        """Return the step by its parts."""
        c, job = self.choice, self.job
        m, passes = c.microbatches, self.forward_s + self.backward_s
        sent = {axis: self.share * self.sent_s(axis) for axis in ("tensor", "context", "expert")}
        if c.context > 1 and c.context_method == "ring":
            mixing = 3 * self.layers * 4 * job.model.context**2 * job.model.width * self.samples
            hidden = mixing / c.tensor / c.context * job.speed.flop_s[c.precision]
            sent["context"] = max(0.0, sent["context"] - hidden * (c.context - 1) / c.context)
        bubble = (c.pipeline - 1) / c.chunks * (passes + sum(sent.values()))
        if c.schedule == "zero-bubble":
            inputs, weights = self.backward_s - self.weights_s, self.weights_s
            idle = max(self.forward_s + inputs - weights, self.forward_s, inputs)
            bubble = (c.pipeline - 1) * (idle + sum(sent.values()))
        update = job.speed.update_s * (self.dense + self.of_experts) / self.whole_model
        return {
            "compute_s": m * passes,
            "bubble_s": bubble,
            **{f"{axis}_s": m * seconds for axis, seconds in sent.items()},
            "pipeline_s": self.hops_s(),
            "shard_s": self.shards_s(),
            "data_s": self.gradients_s(),
            "update_s": update / c.shard if c.zero else update,
        }

    def sent_s(self, axis: str) -> float:
        """Return what a group sends for one microbatch of all layers."""
        c, model = self.choice, self.job.model
        ranks = getattr(c, axis)
        if ranks == 1:
            return 0.0
        samples = self.samples * self.bytes_each / 4
        samples /= c.context if axis == "tensor" else c.tensor
        forward, backward = getattr(self, f"of_{axis}")(model, ranks)
        keeps = c.checkpointing == "selective" and not self.job.selective_sends_again
        again = 0 if keeps else self.again
        return sum(link_s(op, ranks, self.near[axis], size * samples)
                   for op, size in forward * (1 + again) + backward)  # fmt: skip

    def of_tensor(self, model: SearchModel, ranks: int):
        """Return a group's messages for a sample, float32 (Korthikanti et al. 2022, §4.2)."""
        whole, loss = 4 * model.context * model.width, [("all_reduce", 4 * model.context)] * 3
        if not self.job.sequence or model.context % ranks:
            both = [("all_reduce", whole)] * (2 * model.layers + 1)
            return both + loss, both
        place = 4 * model.context * model.width  # the embedding of places, not of each sample
        into, out = [("all_gather", whole)], [("reduce_scatter", whole)]
        forward = (into + out) * (2 * model.layers) + into + out + [("reduce_scatter", place)]
        backward = (into + out) * (2 * model.layers) + into + out + [("all_gather", place)]
        return forward + loss, backward

    def of_context(self, model: SearchModel, ranks: int):
        """Return attention's messages for a sample: heads exchanged, or keys passed around."""
        part = 4 * model.context * model.width // ranks
        if self.choice.context_method == "ring":
            once = [("send_recv_ring", 2 * part)] * ((ranks - 1) * model.layers)
            return once, once * 2
        once = [("all_to_all", 3 * part), ("all_to_all", part)] * model.layers
        return once, once

    def of_expert(self, model: SearchModel, ranks: int):
        """Return a mixture's messages: rows there and back, and before them how many come."""
        rows = [("all_to_all", 4 * model.top_k * model.context * model.width)] * (2 * model.layers)
        return rows + [("all_to_all", 8 * model.experts)] * model.layers, rows

    def hops_s(self) -> float:
        """Return the messages between stages that lengthen a step."""
        job, c, model = self.job, self.choice, self.job.model
        p, m, v = c.pipeline, c.microbatches, c.chunks
        if p == 1:
            return 0.0
        number = {"1f1b": 2 * (p - 1) * m / p + 2 * (p - 2), "zero-bubble": 4 * (p - 1),
                  "interleaved-1f1b": 2 * (p * v - 1)}.get(c.schedule, 2 * (p - 1))  # fmt: skip
        size = model.context / c.context * model.width * self.samples * self.bytes_each
        size /= c.tensor if job.sequence else 1
        near = 2 if self.near["pipeline"] == p else 1
        if job.scatters_messages and not job.sequence:
            gather = link_s("all_gather", c.tensor, self.near["tensor"], size)
            each = link_s("send_recv", 2, near, size / c.tensor) + gather
        else:
            each = link_s("send_recv", 2, near, size)
        if c.schedule in ("gpipe", "looped-bfs"):  # one direction at a time, one after another
            late = max(0.0, each - self.forward_s / v) + max(0.0, each - self.backward_s / v)
            return number * each + (m * v - 1) * late
        messages = m * (2 * v - 1 if p == 2 else 2 * v)
        window = m * (self.forward_s + self.backward_s) * (messages - 1) / messages
        return max(number * each, messages * each - window)

    def shards_s(self) -> float:
        """Return gathers and scatters that nothing hides."""
        c, near = self.choice, self.near["shard"]
        if c.shard == 1:
            return 0.0
        size, blocks = 4 * (self.dense + self.of_experts), self.layers + 1
        if c.zero == 1:
            return link_s("all_gather", c.shard, near, size)
        each = self.job.gathered_bytes_each / 4
        gather = link_s("all_gather", c.shard, near, size * each / blocks)
        scatter = link_s("reduce_scatter", c.shard, near, size / blocks)

        def waits(one_s: float, window_s: float) -> float:
            if self.job.device == "cpu":
                return blocks * one_s
            return max(blocks * one_s - window_s * (blocks - 1) / blocks, one_s)

        forward = waits(gather, self.forward_s)
        if c.zero == 3:
            return c.microbatches * (forward + waits(gather + scatter, self.backward_s))
        times = c.microbatches
        if c.pipeline > 1:
            times = 1
            if self.job.device == "cuda":
                forward = self.first_gathers_s(gather, blocks)
        return forward + times * waits(scatter, self.backward_s)

    def first_gathers_s(self, gather: float, blocks: int) -> float:
        """Return what the first chunks of a pipeline do not hide."""
        c = self.choice
        window, first = self.forward_s / c.chunks, max(1, int(blocks) // c.chunks)
        inside = window * (first - 1) / first
        before = (c.chunks - 1) * window * min(c.microbatches, c.pipeline)
        return max(gather, first * gather - inside, blocks * gather - before - inside)

    def gradients_s(self) -> float:
        """Return the all-reduces that nothing hides."""
        c = self.choice
        axes = ["data", "expert", "context"] + (["shard"] if c.zero == 1 else [])
        copies = ["data", "context"] + (["shard"] if c.zero == 1 else [])
        divided = c.shard if c.zero >= 2 else 1

        def group(names: list[str]) -> tuple[int, int]:
            ranks = math.prod(getattr(c, name) for name in names)
            return ranks, math.prod(self.near[name] for name in names)

        size, total = 4 * self.dense / divided, 0.0
        ranks, near = group(axes)
        if c.tensor == c.context == c.pipeline == 1 and c.zero <= 1:
            number = max(1, math.ceil(size / (c.bucket_mb * 1024 * 1024)))
            each = link_s("all_reduce", ranks, near, size / number)
            late = number * each - self.backward_s * (number - 1) / number
            total = max(late, each) if ranks > 1 else 0.0
        else:
            total = link_s("all_reduce", ranks, near, size)
        ranks, near = group(copies)
        return total + link_s("all_reduce", ranks, near, 4 * self.of_experts / divided) * (
            self.of_experts > 0
        )
