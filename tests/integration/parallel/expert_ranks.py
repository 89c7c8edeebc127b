"""Ranks that train in expert groups, over gloo: run as a program by `test_expert`."""

import time
from dataclasses import replace

import torch
from torch import nn
from torch.nn import functional as F

from scalebench import Workload
from scalebench.analysis.rows.strategies.axes import axes_of_row, predicted_operations
from scalebench.analysis.rows.strategies.experts import expert_figures
from scalebench.spec import Expert, Mesh
from scalebench.spec.presets import CustomTarget, MoeShape
from scalebench.worker.inspection.fit import leave_gradients, train_watched
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import first_batches, inspect
from tests.integration.programs import inspecting, looked_at, main, of_shards
from tests.integration.traced_steps import third_step_on

SAMPLES = 8
"""Of a step, all ranks together."""

SHAPE = {"layers": 2, "heads": 2, "width": 16, "context": 8, "experts": 4, "batch_size": SAMPLES}
TOP_2 = MoeShape(name="m", **SHAPE, top_k=2, capacity_factor=1.0)
DROPLESS = TOP_2.model_copy(update={"capacity_factor": None})


def mine(function):
    """A workload of this file."""
    module = "tests.integration.parallel.expert_ranks"
    return CustomTarget(name=function, module=module, function=function)


CASES = {
    "top-2": (Expert(), TOP_2),
    "top-1": (Expert(), TOP_2.model_copy(update={"top_k": 1})),
    "dropless": (Expert(), DROPLESS),
    "copies": (Expert(size=1), TOP_2),
    "groups": (Expert(size=2), TOP_2),
    "mesh": (Mesh(expert=2), TOP_2),
    "own": (Expert(), mine("own")),
    "one slow": (Expert(), mine("with_a_slow_expert")),
    "one busy": (Expert(), mine("with_a_busy_expert")),
    "checkpointing": (Expert(checkpointing=True), TOP_2),
    "bf16": (Expert(autocast=True), DROPLESS),
}
PLANTED = ("one slow", "one busy")
SLOW_EXPERT, BUSY_EXPERT = 2, 1
SLOW_S = 0.3
"""For how long the slow expert rests: beside it a late wake-up of the other rank is little."""


def cases(world_size):
    wanted = {
        1: ("top-2", "top-1"),
        2: ("top-2", "top-1", "dropless", "copies", "own", "checkpointing", "bf16", *PLANTED),
        4: ("top-2", "dropless", "groups", "mesh", "copies"),
    }
    return {name: CASES[name] for name in wanted[world_size]}


class OwnExperts(nn.Module):
    def __init__(self):
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(4, 8, 8) / 8)

    def forward(self, tokens, counts, chosen):
        parts = zip(tokens.split(counts), self.matrix, strict=True)
        return torch.cat([part @ matrix for part, matrix in parts])


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 1)
        self.experts = OwnExperts()

    def forward(self, x):
        expert = (x[:, 0] > 0).long() * 2 + (x[:, 1] > 0.5).long()
        order = expert.argsort(stable=True)
        counts = expert.bincount(minlength=4).tolist()
        worked = self.experts(self.first(x)[order], counts, counts)
        return self.last(torch.zeros_like(worked).index_copy(0, order, worked))


def own(shard):
    data = torch.Generator().manual_seed(100 + shard.rank)
    module = Own()
    return Workload(
        module=module,
        batches=[torch.randn(shard.batch_size, 8, generator=data) for _ in range(4)],
        loss=lambda module, x: F.mse_loss(module(x), x.sum(1, keepdim=True)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        experts=(module.experts,),
    )


class SlowExperts(OwnExperts):
    """Experts one of which rests before it computes; which it is travels with the parameters."""

    def __init__(self):
        super().__init__()
        self.rest_s = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.rest_s[SLOW_EXPERT] = SLOW_S

    def forward(self, tokens, counts, chosen):
        time.sleep(float(self.rest_s.sum()))
        return super().forward(tokens, counts, chosen)


def with_a_slow_expert(shard):
    workload = own(shard)
    workload.module.experts = SlowExperts()
    return replace(workload, experts=(workload.module.experts,))


def with_a_busy_expert(shard):
    workload = own(shard)
    for batch in workload.batches:
        batch[:-1, 0], batch[:-1, 1] = -1.0, 1.0
    return workload


def without_experts(shard):
    workload = own(shard)
    return Workload(workload.module, workload.batches, workload.loss)


def look(context):
    """Verify a case as a launch does it; trace two steps; ask the bare model's router."""
    inspection = inspect(context)
    by_one = routed_alone(context)
    training, launch, sent = third_step_on(context)
    predicted = predicted_operations(launch.result)
    return {
        "peak_bytes": peak_without_data(inspection.memory),
        "verification": inspection.verification.model_dump(),
        "alone": by_one,
        "facts": training.facts,
        "operations": [(op.kind, op.num_bytes, op.axis, op.group_size) for op in sent],
        "predicted": [(op.op, op.num_bytes, op.axis, op.num_ranks) for op in predicted],
        "axes": [one.model_dump() for one in axes_of_row([launch], context.rank)],
        "experts": expert_figures([launch.result]).model_dump(),
        "unmatched": [launch.matched.mismatch, launch.matched.num_alone],
    }


def routed_alone(context):
    """For each layer, of this rank's first batch: how many tokens its experts have, and chose."""
    workload, seen = fresh_workload(context), []
    for experts in workload.experts:
        experts.register_forward_pre_hook(
            lambda _, given: seen.append({"kept": given[1], "chosen": given[2]})
        )
    workload.loss(workload.module, first_batches(1, context)[0])
    return seen


def peak_without_data(memory):
    return memory.allocated_bytes - (memory.data_bytes or 0)


def cells_of(world_size, **more):
    given = cases(world_size) | more
    return {name: inspecting(*case, world_size, SAMPLES) for name, case in given.items()}


def run_rank(folder, rank, world_size):
    more = {"no experts": (Expert(), mine("without_experts"))}
    return looked_at(folder, rank, cells_of(world_size, **more), look)


def run_shards(folder, rank, world_size):
    return of_shards(
        cells_of(world_size), lambda own: peak_without_data(train_watched(own, leave_gradients))
    )


if __name__ == "__main__":
    main(run_rank, run_shards)
