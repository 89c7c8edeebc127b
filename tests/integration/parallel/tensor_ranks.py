"""Ranks that divide samples in groups, over gloo: run as a program by `test_tensor`."""

import torch
from torch import nn

from scalebench import Workload
from scalebench.analysis.budget import exposed_by_axis
from scalebench.analysis.rows.strategies.axes import axes_of_row, predicted_operations
from scalebench.spec import Context, Mesh, Tensor
from scalebench.spec.presets import CustomTarget, GptShape, MlpShape
from scalebench.spec.workload import ContextPlan, TensorPlan
from scalebench.worker.inspection.fit import train_watched
from scalebench.worker.inspection.verify import inspect
from tests.integration.programs import inspecting, looked_at, main, of_shards
from tests.integration.traced_steps import third_step_on

SAMPLES = 8
"""Of a step, all groups together."""

GPT = GptShape(name="g", layers=2, heads=4, width=32, context=16, batch_size=SAMPLES)
EVEN = MlpShape(name="even", layers=2, width=16, features=6, batch_size=SAMPLES)
ODD = MlpShape(name="odd", layers=3, width=16, features=6, batch_size=SAMPLES)
HERE = "tests.integration.parallel.tensor_ranks"
OWN = CustomTarget(name="own", module=HERE, function="own")
BADLY_NAMED = CustomTarget(name="badly", module=HERE, function="badly_named")

CASES = {
    "gpt": (Tensor(), GPT),
    "gpt, sequence": (Tensor(sequence=True), GPT),
    "gpt, sequence and loss": (Tensor(sequence=True, loss=True), GPT),
    "gpt, groups": (Tensor(size=2), GPT),
    "mlp": (Tensor(), EVEN),
    "mlp, odd": (Tensor(), ODD),
    "mlp, groups": (Tensor(size=2), ODD),
    "own, sequence and loss": (Tensor(sequence=True, loss=True), OWN),
    "checkpointing": (Tensor(checkpointing=True), GPT),
    "bf16": (Tensor(autocast=True), GPT),
    "mesh, groups of replicas": (Mesh(data=2, tensor=2, sequence=True, loss=True), GPT),
    "mesh, shards": (Mesh(shard=None, sequence=True, loss=True), GPT),
    "mesh": (Mesh(shard=None, tensor=2), GPT),
    "mesh, groups of shards, all": (Mesh(shard=None, tensor=2, sequence=True, loss=True), GPT),
    "ulysses": (Context(method="ulysses"), GPT),
    "ring": (Context(method="ring"), GPT),
    "ring, groups": (Context(size=2, method="ring"), GPT),
    "ring, own": (Context(method="ring"), OWN),
    "ring, checkpointing": (Context(method="ring", checkpointing=True), GPT),
    "ring, selective checkpointing": (Context(method="ring", checkpointing="selective"), GPT),
}

ALL = {"sequence": True, "loss": True}
LAST_FIRST = ("tensor", "data", "context", "pipeline", "shard")
PIPES = {"pipeline": 2, "microbatches": 2}
MESHES = {
    "pipeline × shard × tensor": Mesh(**PIPES, shard=2, tensor=2, **ALL),
    "data × shard × tensor": Mesh(data=2, shard=2, tensor=2, **ALL),
    "shard × context × tensor, other order": Mesh(shard=2, context=2, tensor=2, order=LAST_FIRST),
    "pipeline × data × context": Mesh(
        **PIPES, data=2, context=2, chunks=2, schedule="interleaved-1f1b"
    ),
}
OF_EIGHT = {name: (mesh, GPT) for name, mesh in MESHES.items()}
IN_LINE = ("pipeline × shard × tensor", "pipeline × data × context")
"""Stages wait for what others send: none can be run alone."""

ALONE = ("mesh", "gpt", "gpt, sequence and loss", "mlp", "mlp, odd", "ulysses", "ring")


def cases(world_size):
    if world_size == 8:
        return OF_EIGHT
    if world_size == 1:
        return {name: CASES[name] for name in ALONE}
    if world_size == 2:
        return {
            name: case for name, case in CASES.items() if "groups" not in name and name != "mesh"
        }
    wanted = ("gpt, sequence and loss", "ulysses", "ring")
    return {name: case for name, case in CASES.items() if "groups" in name or name in wanted}


class OwnAttention(nn.Module):
    """The part of a user's model that sees more than one token."""

    def forward(self, q, k, v):
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(40, 16)
        self.before = nn.LayerNorm(16)
        self.q, self.k, self.v = (nn.Linear(16, 16, bias=False) for _ in range(3))
        self.mix = OwnAttention()
        self.joined = nn.Linear(16, 16, bias=False)
        self.after = nn.LayerNorm(16)
        self.head = nn.Linear(16, 40)

    def forward(self, words):
        x = self.words(words)
        seen = self.before(x)
        q, k, v = (
            one(seen).unflatten(-1, (-1, 4)).transpose(1, 2) for one in (self.q, self.k, self.v)
        )
        mixed = self.mix(q, k, v)
        x = x + self.joined(mixed.transpose(1, 2).flatten(2))
        return self.head(self.after(x))


DIVIDED = {"words": "vocabulary", "before": "tokens", "[qkv]": "columns", "joined": "rows"}
OWN_PLAN = TensorPlan(
    modules={**DIVIDED, "after": "tokens", "head": "output"},
    divisors={"heads": 4, "vocabulary": 40},
    divides_logits=True,
    sequence=8,
)


def own(shard):
    """Gradient descent does not blow up rounding as Adam does."""
    data = torch.Generator().manual_seed(100 + shard.rank)
    words = [torch.randint(40, (shard.batch_size, 9), generator=data) for _ in range(4)]
    return Workload(
        module=Own(),
        batches=[(some[:, :-1], some[:, 1:]) for some in words],
        loss=next_word,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        tensor_plan=OWN_PLAN,
        context_plan=ContextPlan(attention=("mix",), heads=4, sequence=8),
    )


def badly_named(shard):
    workload = own(shard)
    plan = TensorPlan({"words": "vocabulary", "haed": "output"})
    return Workload(workload.module, workload.batches, workload.loss, tensor_plan=plan)


def next_word(module, batch):
    words, following = batch
    return nn.functional.cross_entropy(module(words).flatten(0, 1), following.flatten())


def look(context):
    """Verify a case as a launch does it; trace two steps; likewise by the laws."""
    inspection = inspect(context)
    training, launch, sent = third_step_on(context)
    parts = launch.breakdowns[context.rank]
    exposed = exposed_by_axis(launch, context.rank).items()
    return {
        "verification": inspection.verification.model_dump(),
        "peak_bytes": inspection.memory.allocated_bytes,
        "operations": sorted(
            (op.kind, op.num_bytes, op.axis, op.group_size) for op in sent if op.kind != "recv"
        ),
        "predicted": sorted(
            ("send" if op.op == "send_recv_ring" else op.op, op.num_bytes, op.axis, op.num_ranks)
            for op in predicted_operations(launch.result, context.rank)
        ),
        "axes": [one.model_dump() for one in axes_of_row([launch], context.rank)],
        "exposed": {str(axis): [one.transfer_s, one.wait_s] for axis, one in exposed},
        "whole": [parts.exposed_transfer_s, parts.wait_s],
        "not_apart": launch.not_apart,
        "facts": training.facts,
        "inspected_facts": inspection.facts,
    }


def cells_of(world_size, **more):
    given = cases(world_size) | more
    return {name: inspecting(*case, world_size, SAMPLES) for name, case in given.items()}


def run_rank(folder, rank, world_size):
    more = {"badly named": (Tensor(), BADLY_NAMED)}
    return looked_at(folder, rank, cells_of(world_size, **more), look)


def run_shards(folder, rank, world_size):
    cells = {n: cell for n, cell in cells_of(world_size).items() if n not in IN_LINE}
    return of_shards(cells, lambda own: train_watched(own).allocated_bytes)


if __name__ == "__main__":
    main(run_rank, run_shards)
