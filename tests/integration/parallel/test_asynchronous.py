"""Training without lockstep, over four real ranks: each method at the limit its paper gives.

Run as a program, this file is the ranks.
"""

import time
from dataclasses import replace
from itertools import cycle, pairwise
from statistics import median

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalebench import Workload, spec
from scalebench.spec.presets import CustomTarget
from scalebench.worker.optimizers import Lamb
from scalebench.worker.process.context import RankContext, joined
from scalebench.worker.strategies import build_training
from scalebench.worker.workloads.batches import ResidentBatches
from tests.examples import cases
from tests.integration.programs import inspecting, main, reports_of

STALE_STEPS = 12
NUM_RANKS = 4
SAMPLES = 4
"""Of a rank's batch."""
ALL_REDUCE = 2 * (NUM_RANKS - 1) / NUM_RANKS
"""Of the bytes of the parameters: what a rank sends for an all-reduce of them."""
RATE, MOMENTUM = 0.05, 0.9
FAST_S, SLOW_S, SLOW_RANK = 0.06, 0.24, 1
"""How long a rank sleeps for each of its batches where one rank is slow."""
HERE = "tests.integration.parallel.test_asynchronous"


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
    far, apart, models_sent = {}, [], []
    for period, synchronous, steps in LOCAL:
        strategy = spec.LocalSgd(period=period, synchronous_steps=synchronous)
        training = ranks.trained(strategy, steps)
        mean = Periodically(period, lambda models: models.mean(0).expand_as(models), synchronous)
        expected = simulated(ranks, steps, after=mean, synchronous=synchronous)
        far[f"{period} {synchronous} {steps}"] = distance(ranks.gathered(training), expected)
        apart.append(ranks.apart(training))
        models_sent.append(sent(training))
    drifting = ranks.trained(spec.LocalSgd(period=4), 3)
    own, mean = flat(drifting), ranks.gathered(drifting).mean(0)
    far["judged by the mean"] = distance(judged(drifting), mean)
    equal = {"own model comes back": distance(flat(drifting), own)}
    return {"far": far, "equal": equal, "apart": apart, "each sent": models_sent}


LOCAL = ((1, 0, 6), (4, 0, 3), (4, 0, 4), (2, 3, 3), (2, 3, 4), (2, 3, 5))
"""Period, synchronous steps before the first one, steps."""


def diloco(ranks):
    """An outer optimizer: its pseudogradient is old minus new; the other sign would go back."""
    start, far = flat(ranks.trained(spec.LocalSgd(), 0)), {}
    for rate, momentum in ((1.0, 0.0), (0.7, 0.9)):
        strategy = spec.DiLoCo(period=4, outer_rate=rate, outer_momentum=momentum)
        training = ranks.trained(strategy, 8)
        expected = simulated(ranks, 8, after=Periodically(4, Nesterov(rate, momentum, start)))
        far[f"rate {rate}"] = distance(ranks.gathered(training), expected)
    equal = {"together": ranks.apart(training)}
    return {"far": far, "equal": equal, "sent": (sent(training), 2 * ALL_REDUCE)}


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
        "far": {"as simulated": distance(ranks.gathered(trained), expected)},
        "sent": (sent(trained), 3 * 2),
    }


def elastic(ranks):
    strategy = spec.ElasticAveraging(period=2, moving_rate=0.8)
    trained = ranks.trained(strategy, 6)
    springs = Springs(0.8, flat(ranks.trained(strategy, 0)))
    expected = simulated(ranks, 6, before=Periodically(2, springs))
    far = {"as simulated": distance(ranks.gathered(trained), expected)}
    far["judged by the centre"] = distance(judged(trained), springs.centre)
    return {"far": far, "sent": (sent(trained), 3 * ALL_REDUCE)}


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
        "far": {"as one step on all": distance(flat(training), expected)},
        "of later rounds": [usual.clients_of_round(number) for number in range(40)],
        "equal": {
            "judged by the common model": distance(common, start),
            "second client": distance(second_starts, start),
            "together": ranks.apart(usual),
        },
        "moved": distance(flat(usual), start),
        "sent": (sent(usual), ALL_REDUCE),
    }


def parameter_server(ranks):
    """Compare the synchronous form with DDP; count how stale gradients are in the other ones."""
    found, synchronous = {"far": {}, "equal": {}}, flat(ranks.trained(spec.Ddp(), 8))
    for name, options in {
        "1 servers": {"servers": 1},
        "3 servers": {"servers": 3},
        "backward": {"servers": 2, "pushes": "backward"},
        "priority": {"servers": 2, "pushes": "priority", "chunk_mb": 4e-5},
    }.items():
        training = ranks.trained(spec.ParameterServer(staleness_bound=0, **options), 8)
        found["far"][name] = distance(judged(training), synchronous)
        found[f"{name}, sent"] = sent(training)
        training.finish()
        found[name] = training.facts
    for name, bound in (("asynchronous", None), ("bounded", 1)):
        training, batches = ranks.build(spec.ParameterServer(staleness_bound=bound))
        own = training.own_batches(cycle(batches))
        for _ in range(STALE_STEPS):
            training.step(next(own))
        with training.evaluated_model():
            found["equal"][name] = ranks.apart(training)
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
    return {"far": found}


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


SYNCHRONOUS = ("1 servers", "3 servers", "backward", "priority")
ROUNDING = 1e-5


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("asynchronous")
    return reports_of("parallel.test_asynchronous", folder, [NUM_RANKS])[NUM_RANKS]


@cases(
    "method",
    *("local_sgd", "diloco", "gossip", "elastic", "fedavg", "parameter_server", "whole_layers"),
)
def test_a_method_does_what_its_paper_says_and_counts_what_it_sends(reports, method):
    """At a limit it is synchronous SGD; elsewhere what one process simulates."""
    for found in (report[method] for report in reports):
        assert max(found["far"].values()) < ROUNDING, found["far"]
        assert not any(found.get("equal", {}).values()), found["equal"]
        sent, law = found.get("sent", (0, 0))
        assert sent == pytest.approx(law)


def test_models_of_local_sgd_drift_apart_until_they_are_averaged(reports):
    for report in reports:
        found = report["local_sgd"]
        assert found["each sent"] == pytest.approx([ALL_REDUCE * n for n in (6, 0, 1, 3, 3, 4)])
        together = [distance == 0 for distance in found["apart"]]
        assert together == [True, False, True, True, False, True]
        assert min(distance for distance in found["apart"] if distance) > 100 * ROUNDING


def test_gossip_tells_the_rate_of_the_ring(reports):
    assert reports[0]["gossip"]["contraction"] == pytest.approx(1 / 3)


@cases("tied", "", " tied")
@cases("name", "pipedream", "2bw")
def test_a_pipeline_that_is_not_flushed_trains_by_its_papers_equation(reports, name, tied):
    """Each stage has the weights, versions and staleness of the law; so has a shared matrix."""
    batches, activations, matrix = 12, 4 * 4 * NUM_RANKS * 6, 4 * 6 * 6
    for stage, report in enumerate(reports):
        found, ahead = report["pipedream"][name + tied], NUM_RANKS - 1 - stage
        assert found["as simulated"] < ROUNDING < found["from the newest"] / 100
        law = ahead if name == "pipedream" else 1
        done = batches - ahead if name == "pipedream" else batches - (ahead > 0)
        begun = {str(steps): 1 for steps in range(law)}
        assert found["staleness"] == begun | {str(law): done - law}
        versions = ahead + 1 if name == "pipedream" else 2
        assert found["weight_versions"] == versions and found["stage_bytes"] == matrix
        assert found["stash_bytes"] == (versions - 1) * matrix
        assert found["kept bytes"] == versions * matrix
        back = batches - ahead if name == "pipedream" else batches - ahead / 4
        summed = done * matrix if tied and stage in (0, 3) else 0
        sent = (stage < 3) * batches * activations + (stage > 0) * back * activations + summed
        assert found["sent"] == sent
        assert (found["held out"] is None) == (stage < 3)
    assert reports[3]["pipedream"][name + tied]["held out"] == pytest.approx(1, rel=1e-5)


def test_clients_weigh_differently(reports):
    found = [report["fedavg"] for report in reports]
    assert min(one["moved"] for one in found) > 100 * ROUNDING
    assert sorted(client for one in found for client in one["clients"]) == list(range(8))
    samples = [count for one in found for count in one["samples"]]
    assert sum(samples) == 200 and max(samples) > 2 * min(samples)


def test_each_round_draws_other_clients_and_none_twice(reports):
    rounds = zip(*(report["fedavg"]["of later rounds"] for report in reports), strict=True)
    drawn = [[client for of_rank in one for client in of_rank] for one in rounds]
    assert all(len(set(one)) == 8 for one in drawn)
    assert len({tuple(one) for one in drawn}) > 30


def test_the_servers_of_a_synchronous_parameter_server_see_no_stale_gradient(reports):
    for rank, report in enumerate(reports):
        for servers in (1, 3):
            facts = report["parameter_server"][f"{servers} servers"]
            stale = {"0": 8 * NUM_RANKS} if rank < servers else None
            assert facts.get("staleness") == stale and facts["num_batches"] == 8


def test_pushes_during_the_backward_pass_are_counted(reports):
    """Two of four ranks serve: what all send is 8 gradients and 8 answers for each other rank."""
    found = [report["parameter_server"] for report in reports]
    for way in SYNCHRONOUS:
        assert all(one[way]["exchange_s"] > 0 for one in found)
    for pushes in ("backward", "priority"):
        sent = sum(one[f"{pushes}, sent"] for one in found)
        assert sent == pytest.approx(8 * 2 * (NUM_RANKS - 1))
    facts = [found[0][name] for name in ("backward", "priority")]
    assert [one["num_chunks"] for one in facts] == [4, 6 + 1 + 1 + 1]
    assert facts[0]["num_overtakes"] == 0


def test_stale_gradients_are_all_counted(reports):
    """In the mean each other rank steps once between two steps of a rank, less at start and end."""
    found = reports[0]["parameter_server"]
    longest = {"asynchronous": NUM_RANKS * STALE_STEPS, "bounded": (2 * 1 + 1) * (NUM_RANKS - 1)}
    for name, most in longest.items():
        counts = {int(steps): count for steps, count in found[name]["staleness"].items()}
        assert sum(counts.values()) == NUM_RANKS * STALE_STEPS
        mean = sum(steps * count for steps, count in counts.items()) / sum(counts.values())
        assert mean <= NUM_RANKS - 1
        assert max(counts) <= most


def test_a_server_answers_every_gradient_that_is_pushed(reports):
    """Asynchronous ranks share the batches as it comes; with a bound each has one in a step."""
    for name in ("asynchronous", "bounded"):
        server, *others = [report["parameter_server"][f"{name}, sent"] for report in reports]
        assert sum(others) == pytest.approx(server)
    assert others == pytest.approx([STALE_STEPS] * (NUM_RANKS - 1), rel=0.02)


def test_a_slow_rank_holds_up_a_synchronous_server_as_the_model_says(reports):
    """In lockstep N / max t batches a second, without Σ 1/t. Medians, so that no delay counts."""
    fast_s, slow_s = [FAST_S] * (NUM_RANKS - 1), [SLOW_S]
    model = SLOW_S * sum(1 / s for s in fast_s + slow_s) / NUM_RANKS
    assert model == pytest.approx(3.25)
    found = [report["slow_rank"] for report in reports]
    lockstep = NUM_RANKS / max(median(rank["synchronous"]) for rank in found)
    alone = sum(1 / median(rank["asynchronous"]) for rank in found)
    assert model / 1.8 < alone / lockstep < 1.3 * model
    batches = [len(rank["asynchronous"]) for rank in found]
    assert sum(batches) == NUM_RANKS * STALE_STEPS
    others = [number for rank, number in enumerate(batches) if rank != SLOW_RANK]
    assert batches[SLOW_RANK] < 0.6 * min(others), batches
    assert {len(rank["synchronous"]) for rank in found} == {STALE_STEPS}


if __name__ == "__main__":
    main(run_rank)
