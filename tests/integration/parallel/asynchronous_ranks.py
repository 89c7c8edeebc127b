"""Ranks that train without lockstep, over gloo: run as a program by `test_asynchronous`.

Arguments: folder for the store and the reports, number of ranks. Imports torch once; the ranks are
forked, and train all cases one after the other. Each writes what it found to ``<rank>.json``: case
→ what the case's function returns.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from scalebench import Workload
from scalebench.spec import (
    Ddp,
    DiLoCo,
    ElasticAveraging,
    FedAvg,
    Gossip,
    LocalSgd,
    ParameterServer,
    PipeDream,
    PipeDream2BW,
    Strategy,
)
from scalebench.spec.presets import CustomTarget
from scalebench.worker.optimizers import Lamb, set_rate
from scalebench.worker.process.context import RankContext, joined
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.batches import ResidentBatches
from tests.integration.programs import inspecting, main

STALE_STEPS = 12
SAMPLES = 4
"""Of a rank's batch."""
RATE, MOMENTUM = 0.05, 0.9
FAST_S, SLOW_S, SLOW_RANK = 0.06, 0.24, 1
"""How long a rank sleeps for each of its batches where one rank is slow."""
HERE = "tests.integration.parallel.asynchronous_ranks"


def regression(shard):
    data = torch.Generator().manual_seed(100 + shard.rank)
    points = [torch.randn(shard.batch_size, 6, generator=data) for _ in range(12)]
    return Workload(
        module=nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 1)),
        batches=[(x, x.sum(1, keepdim=True).sin()) for x in points],
        loss=lambda module, batch: nn.functional.mse_loss(module(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM),
    )


TARGET = CustomTarget(name="regression", module=HERE, function="regression")

Train = Callable[[Strategy], Any]
"""Builds a training from the same initial parameters every time."""


def classification(shard):
    data = torch.Generator().manual_seed(7)
    points = torch.randn(200, 6, generator=data)
    classes = points[:, :5].argmax(1)
    return Workload(
        module=nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5)),
        batches=ResidentBatches("points", 200, shard, lambda i: (points[i], classes[i])),
        loss=lambda module, batch: nn.functional.cross_entropy(module(batch[0]), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=RATE, momentum=MOMENTUM),
    )


class Tied(nn.Module):
    """The last layer of a network that uses the matrix of the first once more."""

    def __init__(self, first):
        super().__init__()
        self.first = first

    def forward(self, x):
        return nn.functional.linear(x, self.first.weight)


def in_layers(shard, tied):
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(6, 6, bias=False), nn.Tanh()) for _ in range(4)]
    layers[3] = nn.Sequential(Tied(layers[0][0])) if tied else layers[3]
    return replace(
        regression(shard),
        module=nn.Sequential(*layers),
        layers=tuple(layers),
        loss=lambda module, batch: nn.functional.mse_loss(module(batch[0]).sum(1, True), batch[1]),
    )


def cell_of(strategy, world_size):
    return inspecting(strategy, TARGET, world_size, SAMPLES * world_size, purpose="measure")


def workload_for(strategy, context):
    torch.manual_seed(0)
    return classification(context.shard) if strategy.kind == "fedavg" else regression(context.shard)


class Ranks:
    def __init__(self, job, rank, world_size):
        self.job, self.rank, self.world_size = job, rank, world_size

    def build(self, strategy, **replaced):
        cell = cell_of(strategy, self.world_size)
        context = RankContext(cell, self.rank, self.rank, self.job.device, self.job.control)
        workload = replace(workload_for(strategy, context), **replaced)
        return build_training(workload, context), iter(workload.batches)

    def trained(self, strategy, num_steps, **replaced):
        training, batches = self.build(strategy, **replaced)
        for _ in range(num_steps):
            training.step(next(batches))
        return training

    def gathered(self, training):
        own = flat(training)
        all_of_them = [torch.empty_like(own) for _ in range(self.world_size)]
        dist.all_gather(all_of_them, own)
        return torch.stack(all_of_them)


def flat(training):
    return torch.cat([p.detach().flatten() for p in training.module.parameters()])


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


def local_sgd(ranks):
    """Compare with DDP where they are the same, and see models drift apart where they are not."""
    synchronous = flat(ranks.trained(Ddp(), 6))
    drifting = ranks.trained(LocalSgd(period=4), 3)
    apart = ranks.gathered(drifting)
    with drifting.evaluated_model():
        mean = flat(drifting)
    training, batches = ranks.build(LocalSgd(period=4))
    for _ in range(4):
        training.step(next(batches))
    together = ranks.gathered(training)
    late = ranks.trained(LocalSgd(period=2, synchronous_steps=3), 3)
    drifted = ranks.trained(LocalSgd(period=2, synchronous_steps=3), 4)
    averaged = ranks.trained(LocalSgd(period=2, synchronous_steps=3), 5)
    num_bytes = 4 * apart.shape[1]
    return {
        "period 1 from DDP": distance(flat(ranks.trained(LocalSgd(period=1), 6)), synchronous),
        "synchronous start from DDP": distance(flat(late), flat(ranks.trained(Ddp(), 3))),
        "apart before the exchange": distance(apart, apart.mean(0).expand_as(apart)),
        "together after it": distance(together, together.mean(0).expand_as(together)),
        "judged by the mean": distance(mean, apart.mean(0)),
        "own model comes back": distance(flat(drifting), apart[ranks.rank]),
        "apart after the synchronous start": distance(*_with_mean(ranks.gathered(drifted))),
        "together at the first period's end": distance(*_with_mean(ranks.gathered(averaged))),
        "sent of a period of 4": [
            (one.sent_bytes or 0) / num_bytes for one in (drifting, training)
        ],
        "sent with 3 synchronous steps": [
            (one.sent_bytes or 0) / num_bytes for one in (late, drifted, averaged)
        ],
    }


def _with_mean(models):
    return models, models.mean(0).expand_as(models)


def diloco(ranks):
    """Compare with local SGD, of which an outer optimizer makes larger steps the same way."""
    start = flat(ranks.trained(LocalSgd(), 0))
    plain = ranks.trained(DiLoCo(period=4, outer_rate=1.0, outer_momentum=0.0), 8)
    once = ranks.trained(DiLoCo(period=4), 4)
    learned = flat(ranks.trained(LocalSgd(period=4), 4)) - start
    twice = ranks.trained(DiLoCo(period=4, outer_rate=0.7, outer_momentum=0.9), 8)
    return {
        "as local SGD": distance(flat(plain), flat(ranks.trained(LocalSgd(period=4), 8))),
        "one outer step": distance(flat(once) - start, 0.7 * (1 + 0.9) * learned),
        "together": distance(*_with_mean(ranks.gathered(twice))),
        "sent": (twice.sent_bytes or 0) / (4 * start.numel()),
    }


def gossip(ranks):
    """Mix different models without training them; train them as one process would simulate it."""
    mixing, batches = ranks.build(Gossip())
    set_rate(mixing.optimizer, 0.0)
    own = torch.Generator().manual_seed(ranks.rank)
    mixing.set_parameters(torch.randn(flat(mixing).numel(), generator=own))
    before = ranks.gathered(mixing)
    apart = []
    for _ in range(4):
        mixing.step(next(batches))
        models = ranks.gathered(mixing)
        apart.append(float((models - before.mean(0)).norm()))
    started = float((before - before.mean(0)).norm())
    trained = ranks.trained(Gossip(period=2), 6)
    return {
        "distance from the mean": [started, *apart],
        "mean is kept": distance(models.mean(0), before.mean(0)),
        "contraction": mixing.facts["contraction"],
        "as simulated": distance(ranks.gathered(trained), simulated(ranks, ring_exchange, 2, 6)),
        "sent of 3 exchanges": (trained.sent_bytes or 0) / (4 * before.shape[1]),
    }


def elastic(ranks):
    """Exchange without training; train as one process would simulate it."""
    strategy = ElasticAveraging(period=1, moving_rate=0.8)
    pulled, batches = ranks.build(strategy)
    set_rate(pulled.optimizer, 0.0)
    own = torch.Generator().manual_seed(ranks.rank)
    pulled.set_parameters(torch.randn(flat(pulled).numel(), generator=own))
    before, centre = ranks.gathered(pulled), pulled.centre.clone()
    pulled.step(next(batches))
    after = ranks.gathered(pulled)
    trained = ranks.trained(ElasticAveraging(period=2, moving_rate=0.8), 6)
    expected = Springs(0.8, flat(ranks.trained(strategy, 0)))
    models = simulated(ranks, expected, 2, 6)
    with trained.evaluated_model():
        judged_by = flat(trained)
    return {
        "model": distance(after, before - 0.2 * (before - centre)),
        "centre": distance(pulled.centre, centre + 0.8 * (before.mean(0) - centre)),
        "sum is kept": distance(after.sum(0) + pulled.centre, before.sum(0) + centre),
        "as simulated": distance(ranks.gathered(trained), models),
        "judged by the centre": distance(judged_by, expected.centre),
        "sent of 3 exchanges": (trained.sent_bytes or 0) / (4 * before.shape[1]),
    }


class Springs:
    """The exchange of elastic averaging in one process, as the paper writes it."""

    def __init__(self, moving_rate, centre):
        self.moving_rate, self.centre = moving_rate, centre

    def __call__(self, models):
        pull = self.moving_rate / len(models) * (models - self.centre)
        self.centre = self.centre + pull.sum(0)
        return models - pull


Exchange = Callable[[torch.Tensor], torch.Tensor]
"""The models of all ranks, shape [N, Ψ] → what each starts its step from."""


def ring_exchange(models):
    return (models + models.roll(1, 0) + models.roll(-1, 0)) / 3


def simulated(ranks, exchange, period, num_steps):
    context = RankContext(cell_of(Ddp(), ranks.world_size), 0, 0, ranks.job.device)
    workload = workload_for(Ddp(), context)
    streams = [
        regression(replace(context.shard, rank=rank)).batches for rank in range(ranks.world_size)
    ]
    start = torch.nn.utils.parameters_to_vector(workload.module.parameters()).detach()
    models = start.repeat(ranks.world_size, 1)
    momentum = torch.zeros_like(models)
    for step, batches in enumerate(list(zip(*streams, strict=True))[:num_steps]):
        gradients = torch.stack(
            [gradient(workload, x, b) for x, b in zip(models, batches, strict=True)]
        )
        models = exchange(models) if step % period == 0 else models
        momentum = MOMENTUM * momentum + gradients
        models = models - RATE * momentum
    return models


def gradient(workload, parameters, batch):
    variables = list(workload.module.parameters())
    torch.nn.utils.vector_to_parameters(parameters.clone(), variables)
    found = torch.autograd.grad(workload.loss(workload.module, batch), variables)
    return torch.cat([one.flatten() for one in found])


PIPES = {"pipedream": PipeDream(split="even"), "2bw": PipeDream2BW(split="even", microbatches=4)}


def pipedream(ranks):
    """Train stages that are never flushed; compare with one process that keeps all versions."""
    found: dict[str, Any] = {}
    for name, strategy in PIPES.items():
        for tied in (False, True):
            cell = cell_of(strategy, ranks.world_size)
            context = RankContext(cell, ranks.rank, ranks.rank, ranks.job.device, ranks.job.control)
            training = build_training(in_layers(context.shard, tied), context)
            batches = list(in_layers(context.shard, tied).batches)
            for batch in batches[:9]:
                training.step(batch)
            training.finish_exchanges()
            held_out = training.held_out_loss(batches[0])
            for batch in batches[9:]:
                training.step(batch)
            training.finish()
            whole = in_layers(context.shard, tied)
            halfway = versions_in_one_process(strategy, whole, batches[:9])
            nn.utils.vector_to_parameters(
                torch.cat(halfway[: len(list(whole.module.parameters()))]),
                whole.module.parameters(),
            )
            expected = float(whole.loss(whole.module, batches[0]).detach())
            alone = versions_in_one_process(strategy, in_layers(context.shard, tied), batches)
            fresh = versions_in_one_process(strategy, in_layers(context.shard, tied), batches, 0)
            found[f"{name} tied" if tied else name] = training.facts | {
                "as simulated": distance(flat(training), alone[ranks.rank]),
                "from the newest": distance(fresh[ranks.rank], alone[ranks.rank]),
                "sent": training.sent_bytes,
                "held out": None if held_out is None else float(held_out.detach()) / expected,
                "kept bytes": sum(
                    {t.data_ptr(): t.nbytes for t in training.kept_shards()}.values()
                ),
            }
    return found


def versions_in_one_process(strategy, workload, batches, age=1):
    """Return each stage's weights in the end, shape [stages, Ψ], by the papers' equations.

    PipeDream: ``w_s(t+1) = w_s(t) - η·∇f(w_1(t-S+1), …, w_S(t))``; 2BW: ``W(t+1) = W(t) -
    η·∇f(W(t-1))``. A shared matrix is one of the first stage. With an age of 0 no weights are old.
    """
    module, layers = workload.module, len(workload.layers)
    names = list(dict(module.named_parameters()))
    kept = [[dict(module.named_parameters())[name].detach().clone()] for name in names]
    momentum = [torch.zeros_like(versions[0]) for versions in kept]
    late = [age * strategy.staleness(stage, layers) for stage in range(layers)]
    for number, (x, y) in enumerate(batches):
        used = [
            versions[max(number - late[stage], 0)].clone().requires_grad_()
            for stage, versions in enumerate(kept)
        ]
        output = torch.func.functional_call(module, dict(zip(names, used, strict=True)), x)
        gradients = torch.autograd.grad(workload.loss(lambda _, out=output: out, (x, y)), used)
        for stage, gradient in enumerate(gradients):
            momentum[stage] = MOMENTUM * momentum[stage] + gradient
            kept[stage].append(kept[stage][-1] - RATE * momentum[stage])
    ahead = [layers - 1 - stage for stage in range(layers)]
    parts = strategy.microbatches
    steps = [(len(batches) * parts - slots) // parts for slots in ahead]
    in_the_end = [versions[steps[stage]].flatten() for stage, versions in enumerate(kept)]
    return [*in_the_end, in_the_end[0]] if len(in_the_end) < layers else in_the_end


def fedavg(ranks):
    everybody = FedAvg(period=1, clients=8, clients_per_rank=2, concentration=1.0)
    training, _ = ranks.build(everybody)
    drawn = training.clients_of_round(0)
    for client in drawn:
        training.step(training.batches.gather(torch.from_numpy(training.samples[client])))
    cell = cell_of(everybody, ranks.world_size)
    context = RankContext(cell, ranks.rank, ranks.rank, ranks.job.device)
    workload = workload_for(everybody, context)
    start = torch.nn.utils.parameters_to_vector(workload.module.parameters()).detach()
    everything = workload.batches.gather(torch.arange(200))
    expected = start - RATE * gradient(workload, start, everything)
    usual, _ = ranks.build(FedAvg(period=3, clients=8, clients_per_rank=2))
    own = usual.own_batches(iter(()))
    for _ in range(3):
        usual.step(next(own))
    with usual.evaluated_model():
        common = flat(usual)
    second_starts = flat(usual)
    for _ in range(3):
        usual.step(next(own))
    return {
        "clients": drawn,
        "samples": [len(training.samples[client]) for client in drawn],
        "as one step on all": distance(flat(training), expected),
        "of later rounds": [usual.clients_of_round(number) for number in range(40)],
        "judged by the common model": distance(common, start),
        "second client": distance(second_starts, start),
        "moved": distance(flat(usual), start),
        "together": distance(*_with_mean(ranks.gathered(usual))),
        "sent of a round": (usual.sent_bytes or 0) / (4 * start.numel()),
    }


def parameter_server(ranks):
    """Compare the synchronous form with DDP; count how stale gradients are in the other ones."""
    found: dict[str, Any] = {"from DDP": []}
    synchronous = flat(ranks.trained(Ddp(), 8))
    for servers in (1, 3):
        training = ranks.trained(ParameterServer(servers=servers, staleness_bound=0), 8)
        found["from DDP"].append(distance(flat(training), synchronous))
        training.finish()
        found[f"synchronous, {servers} servers"] = training.facts
    for pushes in ("backward", "priority"):
        strategy = ParameterServer(
            servers=2,
            staleness_bound=0,
            pushes=pushes,
            chunk_mb=4e-5 if pushes == "priority" else None,
        )
        training = ranks.trained(strategy, 8)
        with training.evaluated_model():
            found[f"{pushes} from DDP"] = distance(flat(training), synchronous)
        found[f"{pushes}, sent"] = (training.sent_bytes or 0) / (4 * synchronous.numel())
        training.finish()
        found[f"{pushes}, facts"] = training.facts
    for name, bound in (("asynchronous", None), ("bounded", 1)):
        training, batches = ranks.build(ParameterServer(staleness_bound=bound))
        own = training.own_batches(cycle(batches))
        for _ in range(STALE_STEPS):
            training.step(next(own))
        with training.evaluated_model():
            found[f"{name}, judged"] = distance(*_with_mean(ranks.gathered(training)))
        training.finish()
        found[name] = training.facts
        found[f"{name}, sent"] = (training.sent_bytes or 0) / (4 * synchronous.numel())
    return found


def whole_layers(ranks):
    """Compare servers whose optimizer needs the norms of whole layers with DDP."""
    lamb = {"optimizer": lambda parameters: Lamb(parameters, RATE, weight_decay=0.01)}
    synchronous = flat(ranks.trained(Ddp(), 6, **lamb))
    found = {}
    for name, servers, pushes in (
        ("1 server", 1, "together"),
        ("3 servers", 3, "together"),
        ("by priority", 2, "priority"),
    ):
        strategy = ParameterServer(servers=servers, staleness_bound=0, pushes=pushes)
        training = ranks.trained(strategy, 6, **lamb)
        with training.evaluated_model():
            found[name] = distance(flat(training), synchronous)
        training.finish()
    return found


def slow_rank(ranks):
    """Train with a rank that sleeps longer than the others; note the seconds of each batch."""
    sleep_s = SLOW_S if ranks.rank == SLOW_RANK else FAST_S
    found = {}
    for name, bound in (("synchronous", 0), ("asynchronous", None)):
        training, batches = ranks.build(ParameterServer(staleness_bound=bound))
        ends = [time.perf_counter()]

        def sleepy(batches, ends=ends):
            for batch in cycle(batches):
                time.sleep(sleep_s)
                yield batch
                ends.append(time.perf_counter())

        own = training.own_batches(sleepy(batches))
        for _ in range(STALE_STEPS):
            training.step(next(own))
        ends.append(time.perf_counter())
        training.finish()
        found[name] = [later - earlier for earlier, later in pairwise(ends)]
    return found


CASES: dict[str, Callable[[Ranks], dict[str, Any]]] = {
    "local-sgd": local_sgd,
    "diloco": diloco,
    "gossip": gossip,
    "elastic": elastic,
    "fedavg": fedavg,
    "pipedream": pipedream,
    "parameter-server": parameter_server,
    "whole-layers": whole_layers,
    "slow-rank": slow_rank,
}


def run_rank(folder, rank, world_size):
    report = {}
    with joined(cell_of(Ddp(), world_size), rank, folder / "store") as job:
        for name, look in CASES.items():
            report[name] = look(Ranks(job, rank, world_size))
    return report


if __name__ == "__main__":
    main(run_rank)
