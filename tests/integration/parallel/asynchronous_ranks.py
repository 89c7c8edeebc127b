"""Ranks that train without lockstep, over gloo: run as a program by `test_asynchronous`."""

import time
from dataclasses import replace
from itertools import cycle, pairwise

import torch
import torch.distributed as dist
from torch import nn

from scalebench import Workload, spec
from scalebench.spec.presets import CustomTarget
from scalebench.worker.optimizers import Lamb
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


def classification(shard):
    data = torch.Generator().manual_seed(7)
    points = torch.randn(200, 6, generator=data)
    classes = points[:, :5].argmax(1)
    return replace(
        regression(shard),
        module=nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 5)),
        batches=ResidentBatches("points", 200, shard, lambda i: (points[i], classes[i])),
        loss=lambda module, batch: nn.functional.cross_entropy(module(batch[0]), batch[1]),
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

    def context(self, strategy):
        cell = cell_of(strategy, self.world_size)
        return RankContext(cell, self.rank, self.rank, self.job.device, self.job.control)

    def build(self, strategy, **replaced):
        context = self.context(strategy)
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

    def apart(self, training):
        models = self.gathered(training)
        return distance(models, models.mean(0).expand_as(models))


def flat(training):
    return torch.cat([p.detach().flatten() for p in training.module.parameters()])


def distance(found, expected):
    return float((found - expected).norm() / expected.norm())


def sent(training):
    """What a rank sends, in models."""
    return (training.sent_bytes or 0) / (4 * flat(training).numel())


def judged(training):
    with training.evaluated_model():
        return flat(training)


def local_sgd(ranks):
    """Periods and synchronous steps before them: at their ends, and where models are apart."""
    found = {"as simulated": [], "apart": [], "sent": []}
    for period, synchronous, steps in LOCAL:
        strategy = spec.LocalSgd(period=period, synchronous_steps=synchronous)
        training = ranks.trained(strategy, steps)
        mean = Periodically(period, lambda models: models.mean(0).expand_as(models), synchronous)
        expected = simulated(ranks, steps, after=mean, synchronous=synchronous)
        found["as simulated"].append(distance(ranks.gathered(training), expected))
        found["apart"].append(ranks.apart(training))
        found["sent"].append(sent(training))
    drifting = ranks.trained(spec.LocalSgd(period=4), 3)
    own, mean = flat(drifting), ranks.gathered(drifting).mean(0)
    return found | {
        "judged by the mean": distance(judged(drifting), mean),
        "own model comes back": distance(flat(drifting), own),
    }


LOCAL = ((1, 0, 6), (4, 0, 3), (4, 0, 4), (2, 3, 3), (2, 3, 4), (2, 3, 5))
"""Period, synchronous steps before the first one, steps."""


def diloco(ranks):
    """An outer optimizer: its pseudogradient is old minus new; the other sign would go back."""
    start, far = flat(ranks.trained(spec.LocalSgd(), 0)), []
    for rate, momentum in ((1.0, 0.0), (0.7, 0.9)):
        strategy = spec.DiLoCo(period=4, outer_rate=rate, outer_momentum=momentum)
        training = ranks.trained(strategy, 8)
        expected = simulated(ranks, 8, after=Periodically(4, Nesterov(rate, momentum, start)))
        far.append(distance(ranks.gathered(training), expected))
    return {"as simulated": max(far), "together": ranks.apart(training), "sent": sent(training)}


class Nesterov:
    def __init__(self, rate, momentum, common):
        self.rate, self.momentum, self.common, self.velocity = rate, momentum, common, 0.0

    def __call__(self, models):
        learned = self.common - models.mean(0)
        self.velocity = self.momentum * self.velocity + learned
        self.common = self.common - self.rate * (learned + self.momentum * self.velocity)
        return self.common.expand_as(models)


def gossip(ranks):
    trained = ranks.trained(spec.Gossip(period=2), 6)
    ring = Periodically(2, lambda models: (models + models.roll(1, 0) + models.roll(-1, 0)) / 3)
    expected = simulated(ranks, 6, before=ring)
    return {
        "contraction": trained.facts["contraction"],
        "as simulated": distance(ranks.gathered(trained), expected),
        "sent of 3 exchanges": sent(trained),
    }


def elastic(ranks):
    strategy = spec.ElasticAveraging(period=2, moving_rate=0.8)
    trained = ranks.trained(strategy, 6)
    springs = Springs(0.8, flat(ranks.trained(strategy, 0)))
    expected = simulated(ranks, 6, before=Periodically(2, springs))
    return {
        "as simulated": distance(ranks.gathered(trained), expected),
        "judged by the centre": distance(judged(trained), springs.centre),
        "sent of 3 exchanges": sent(trained),
    }


class Springs:
    """The exchange of elastic averaging in one process, as the paper writes it."""

    def __init__(self, moving_rate, centre):
        self.moving_rate, self.centre = moving_rate, centre

    def __call__(self, models):
        pull = self.moving_rate / len(models) * (models - self.centre)
        self.centre = self.centre + pull.sum(0)
        return models - pull


class Periodically:
    """An exchange of models, shape [N, Ψ], in the first or behind the last step of each period."""

    def __init__(self, period, exchange, first=0):
        self.period, self.exchange, self.first = period, exchange, first

    def __call__(self, models, number):
        due = number >= self.first and (number - self.first) % self.period == 0
        return self.exchange(models) if due else models


def simulated(ranks, num_steps, before=None, after=None, synchronous=0):
    """Train the models of all ranks in one process; exchange before or after their own step."""
    context = RankContext(cell_of(spec.Ddp(), ranks.world_size), 0, 0, ranks.job.device)
    workload = workload_for(spec.Ddp(), context)
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
        if step < synchronous:
            gradients = gradients.mean(0).expand_as(gradients)
        models = before(models, step) if before else models
        momentum = MOMENTUM * momentum + gradients
        models = models - RATE * momentum
        if after and step + 1 > synchronous:
            models = after(models, step + 1)
    return models


def gradient(workload, parameters, batch):
    variables = list(workload.module.parameters())
    torch.nn.utils.vector_to_parameters(parameters.clone(), variables)
    found = torch.autograd.grad(workload.loss(workload.module, batch), variables)
    return torch.cat([one.flatten() for one in found])


PIPES = {
    "pipedream": spec.PipeDream(split="even"),
    "2bw": spec.PipeDream2BW(split="even", microbatches=4),
}


def pipedream(ranks):
    """Train stages that are never flushed; compare with one process that keeps all versions."""
    found = {}
    for name, strategy, tied in ((n, s, tied) for n, s in PIPES.items() for tied in (False, True)):
        context = ranks.context(strategy)
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
        halfway = torch.cat(halfway[: len(list(whole.module.parameters()))])
        nn.utils.vector_to_parameters(halfway, whole.module.parameters())
        expected = float(whole.loss(whole.module, batches[0]).detach())
        alone, fresh = (
            versions_in_one_process(strategy, in_layers(context.shard, tied), batches, age)
            for age in (1, 0)
        )
        kept = {t.data_ptr(): t.nbytes for t in training.kept_shards()}
        found[f"{name} tied" if tied else name] = training.facts | {
            "as simulated": distance(flat(training), alone[ranks.rank]),
            "from the newest": distance(fresh[ranks.rank], alone[ranks.rank]),
            "sent": training.sent_bytes,
            "held out": None if held_out is None else float(held_out.detach()) / expected,
            "kept bytes": sum(kept.values()),
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
    """Train every client on all its samples for a step; compare with a step on all samples."""
    everybody = spec.FedAvg(period=1, clients=8, clients_per_rank=2, concentration=1.0)
    training, _ = ranks.build(everybody)
    drawn = training.clients_of_round(0)
    for client in drawn:
        training.step(training.batches.gather(torch.from_numpy(training.samples[client])))
    workload = workload_for(everybody, ranks.context(everybody))
    start = torch.nn.utils.parameters_to_vector(workload.module.parameters()).detach()
    everything = workload.batches.gather(torch.arange(200))
    expected = start - RATE * gradient(workload, start, everything)
    usual, _ = ranks.build(spec.FedAvg(period=3, clients=8, clients_per_rank=2))
    own = usual.own_batches(iter(()))
    for _ in range(3):
        usual.step(next(own))
    common, second_starts = judged(usual), flat(usual)
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
        "together": ranks.apart(usual),
        "sent of a round": sent(usual),
    }


def parameter_server(ranks):
    """Compare the synchronous form with DDP; count how stale gradients are in the other ones."""
    found, synchronous = {}, flat(ranks.trained(spec.Ddp(), 8))
    for name, options in {
        "1 servers": {"servers": 1},
        "3 servers": {"servers": 3},
        "backward": {"servers": 2, "pushes": "backward"},
        "priority": {"servers": 2, "pushes": "priority", "chunk_mb": 4e-5},
    }.items():
        training = ranks.trained(spec.ParameterServer(staleness_bound=0, **options), 8)
        found[f"{name} from DDP"] = distance(judged(training), synchronous)
        found[f"{name}, sent"] = sent(training)
        training.finish()
        found[name] = training.facts
    for name, bound in (("asynchronous", None), ("bounded", 1)):
        training, batches = ranks.build(spec.ParameterServer(staleness_bound=bound))
        own = training.own_batches(cycle(batches))
        for _ in range(STALE_STEPS):
            training.step(next(own))
        with training.evaluated_model():
            found[f"{name}, judged"] = ranks.apart(training)
        training.finish()
        found[name] = training.facts
        found[f"{name}, sent"] = sent(training)
    return found


def whole_layers(ranks):
    """Compare servers whose optimizer needs the norms of whole layers with DDP."""
    lamb = {"optimizer": lambda parameters: Lamb(parameters, RATE, weight_decay=0.01)}
    synchronous, found = flat(ranks.trained(spec.Ddp(), 6, **lamb)), {}
    for servers, pushes in ((1, "together"), (3, "together"), (2, "priority")):
        strategy = spec.ParameterServer(servers=servers, staleness_bound=0, pushes=pushes)
        training = ranks.trained(strategy, 6, **lamb)
        found[f"{servers} {pushes}"] = distance(judged(training), synchronous)
        training.finish()
    return found


def slow_rank(ranks):
    """Train with a rank that sleeps longer than the others; note the seconds of each batch."""
    sleep_s = SLOW_S if ranks.rank == SLOW_RANK else FAST_S
    found = {}
    for name, bound in (("synchronous", 0), ("asynchronous", None)):
        training, batches = ranks.build(spec.ParameterServer(staleness_bound=bound))
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


CASES = (
    *(local_sgd, diloco, gossip, elastic, fedavg, pipedream),
    *(parameter_server, whole_layers, slow_rank),
)


def run_rank(folder, rank, world_size):
    with joined(cell_of(spec.Ddp(), world_size), rank, folder / "store") as job:
        return {look.__name__: look(Ranks(job, rank, world_size)) for look in CASES}


if __name__ == "__main__":
    main(run_rank)
