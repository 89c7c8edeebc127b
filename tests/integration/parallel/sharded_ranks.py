"""Ranks that train under every sharded strategy: run as a program by `test_sharded`.

At two ranks their memory is counted, at more their results, traffic and traces are looked at.
"""

from dataclasses import replace

import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel

from scalebench import Workload
from scalebench.costmodel.memory import MeasuredBaseline, predict_memory
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Ddp, Fsdp, Fsdp1, Plain, Zero1
from scalebench.spec.presets import PRESETS, CustomTarget
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import inspect
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies import build_training
from scalebench.worker.strategies.base import whole
from scalebench.worker.strategies.data_parallel import PlainTraining
from scalebench.worker.workloads.batches import concatenate
from tests.integration.programs import inspecting, looked_at, main
from tests.integration.traced_steps import traced_launch

SAMPLES = 2
"""Of a rank's batch."""
NUM_STEPS = 4

CASES = {
    "ddp": Ddp(),
    "fsdp": Fsdp(),
    "shard-grad-op": Fsdp(reshard_after_forward=False),
    "no-shard": Fsdp(shard_size=1),
    "hsdp": Fsdp(shard_size=2),
    "by-size": Fsdp(min_num_params=600),
    "prefetch": Fsdp(prefetch=2),
    "bf16": Fsdp(param_dtype="bfloat16"),
    "checkpointing": Fsdp(checkpointing=True),
    "selective": Fsdp(checkpointing="selective"),
    "fsdp1": Fsdp1(),
    "fsdp1-shard-grad-op": Fsdp1(reshard_after_forward=False),
    "zero1": Zero1(),
    "ddp-fp16": Ddp(accumulate=2, autocast="float16"),
    "fsdp-fp16": Fsdp(autocast="float16"),
    "hsdp-fp16": Fsdp(shard_size=2, autocast="float16"),
    "fsdp1-fp16": Fsdp1(autocast="float16"),
    "zero1-fp16": Zero1(autocast="float16"),
}
OF_FOUR = ("fsdp", "hsdp", "hsdp-fp16", "fsdp1", "zero1")
MEMORY = (
    *((case, "gpt-tiny") for case in ("fsdp", "shard-grad-op", "fsdp1", "zero1")),
    *((case, "gpt-mini") for case in ("fsdp", "zero1")),
)
"""Cases and workloads of which the memory is counted, at two ranks."""


def cases(world_size):
    return {
        n: s for n, s in CASES.items() if (n in OF_FOUR if world_size == 4 else "hsdp" not in n)
    }


class Layer(nn.Module):
    """A residual block whose widths no number of ranks divides."""

    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(18)
        self.mlp = nn.Sequential(nn.Linear(18, 35), nn.GELU(), nn.Linear(35, 18))

    def forward(self, x):
        return x + self.mlp(self.norm(x))


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(37, 18)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, words):
        x = self.words(words)
        for layer in self.layers:
            x = layer(x)
        return nn.functional.linear(x, self.words.weight)


def tied(shard):
    """Gradient descent with momentum does not blow up rounding as Adam does."""
    module = Tied()
    data = torch.Generator().manual_seed(100 + shard.rank)
    batches = [torch.randint(37, (shard.batch_size, 9), generator=data) for _ in range(4)]
    return Workload(
        module=module,
        batches=batches,
        loss=next_word_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        blocks=tuple(module.layers),
    )


def next_word_loss(module, words):
    return nn.functional.cross_entropy(module(words[:, :-1]).flatten(0, 1), words[:, 1:].flatten())


HERE = "tests.integration.parallel.sharded_ranks"
TIED = CustomTarget(name=f"{HERE}:tied", module=HERE, function="tied")


def look(context):
    """Verify a strategy as a launch does it; then train, and hold traffic and parameters."""
    cell = context.cell
    verification = inspect(context).verification
    workload = fresh_workload(context)
    num_parameters = sum(p.numel() for p in workload.module.parameters())
    training = build_training(workload, context)
    batches = list(workload.batches)
    for batch in batches[: NUM_STEPS - 2]:
        training.step_done(batch)
    # Other cases' groups are still there: where a strategy tells none, it has one.
    known = {} if training.groups else {"default": cell.world_size}
    launch = traced_launch(context, training, batches[NUM_STEPS - 2 : NUM_STEPS], known)
    groups = training.facts.get("group_elements")
    return {
        "verification": verification.model_dump(),
        "wire_bytes": launch.wire_bytes(context.rank),
        "predicted_wire_bytes": predict_traffic(
            cell.strategy, num_parameters, cell.world_size, groups
        ).total_bytes,
        "not_apart": launch.not_apart,
        "parameter_deviation": parameter_deviation(training, context),
        "loss_scale": training.scaler and training.scaler.history(),
    }


def parameter_deviation(training, context):
    """How far the ranks' parameters are from those of one process on the joined batches."""
    shards = [replace(context.shard, rank=rank) for rank in range(context.cell.world_size)]
    streams = [tied(shard).batches for shard in shards]
    plain = PlainTraining(Plain(), fresh_workload(context), context)
    for parts in list(zip(*streams, strict=True))[:NUM_STEPS]:
        plain.step(concatenate(parts))
    expected = {name: p.detach() for name, p in plain.module.named_parameters()}
    found = dict(full_parameters(training.module))
    assert found.keys() == expected.keys()
    return max(float((found[n] - p).norm() / p.norm()) for n, p in expected.items())


def full_parameters(module):
    if isinstance(module, FullyShardedDataParallel):
        with FullyShardedDataParallel.summon_full_params(module):
            yield from ((name, p.detach().clone()) for name, p in module.named_parameters())
        return
    for name, parameter in module.named_parameters():
        yield name.removeprefix("module."), whole(parameter.detach(), torch.device("cpu"))


def look_at_memory(context):
    cell = context.cell
    alone = inspecting(Plain(), cell.workload, 1, cell.global_batch)
    baseline = inspect(RankContext(alone, 0, 0, context.device)).memory
    counted = inspect(context).memory
    facts = build_training(fresh_workload(context), context).facts
    predicted = predict_memory(
        cell.strategy,
        cell.workload.num_parameters,
        cell.rank_batch,
        "AdamW",
        MeasuredBaseline(Plain(), cell.global_batch, baseline),
        cell.world_size,
        facts.get("group_elements"),
    )
    return {
        "group_bytes": 4 * max(facts.get("group_elements") or [0]),
        "counted": counted.model_dump(),
        "predicted": vars(predicted) | {"unavailable": dict(predicted.unavailable)},
        "total": predicted.total_bytes,
        "plain_bytes": baseline.allocated_bytes,
    }


def run_rank(folder, rank, world_size):
    if world_size > 2:
        batch = SAMPLES * world_size
        cells = {n: inspecting(s, TIED, world_size, batch) for n, s in cases(world_size).items()}
        return looked_at(folder, rank, cells, look)
    batches = {"gpt-tiny": 8 * world_size, "gpt-mini": world_size}
    cells = {
        f"{name} {model}": inspecting(CASES[name], PRESETS[model], world_size, batches[model])
        for name, model in MEMORY
    }
    return looked_at(folder, rank, cells, look_at_memory)


if __name__ == "__main__":
    main(run_rank)
