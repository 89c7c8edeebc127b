import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.errors import UsageError
from scalebench.worker.optimizers import Lamb, Lars
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.chunks import ELEMENTWISE, cut, one_each
from scalebench.worker.strategies.asynchronous.fedavg import divide_by_class, divide_evenly
from scalebench.worker.strategies.asynchronous.replica import contraction, neighbours
from scalebench.worker.strategies.asynchronous.serving import Server, TooFewWorkers
from tests.examples import cases

SHAPES = ((3, 4), (5,), (2, 3, 2))


def trained(make, gradients, start):
    parameters = [torch.nn.Parameter(torch.tensor(w)) for w in start]
    optimizer = make(parameters)
    for step in gradients:
        for parameter, g in zip(parameters, step, strict=True):
            parameter.grad = torch.tensor(g)
        optimizer.step()
    return [p.detach().numpy() for p in parameters]


def lars(gradients, start, rate, momentum, decay, trust):
    weights, velocities = [w.copy() for w in start], [np.zeros_like(w) for w in start]
    for step in gradients:
        for i, g in enumerate(step):
            w = weights[i]
            if w.ndim == 1:
                update = rate * g
            else:
                norm_w, norm_g = np.sqrt((w**2).sum()), np.sqrt((g**2).sum())
                local = trust * norm_w / (norm_g + decay * norm_w) if norm_w and norm_g else 1.0
                update = rate * local * (g + decay * w)
            velocities[i] = momentum * velocities[i] + update
            weights[i] = w - velocities[i]
    return weights


def lamb(gradients, start, rate, beta1, beta2, eps, decay):
    weights = [w.copy() for w in start]
    m, v = ([np.zeros_like(w) for w in start] for _ in range(2))
    for t, step in enumerate(gradients, start=1):
        for i, g in enumerate(step):
            w = weights[i]
            m[i] = beta1 * m[i] + (1 - beta1) * g
            v[i] = beta2 * v[i] + (1 - beta2) * g**2
            r = m[i] / (1 - beta1**t) / (np.sqrt(v[i] / (1 - beta2**t)) + eps)
            ratio = 1.0
            if w.ndim > 1:
                r = r + decay * w
                norm_w, norm_r = np.sqrt((w**2).sum()), np.sqrt((r**2).sum())
                ratio = norm_w / norm_r if norm_w and norm_r else 1.0
            weights[i] = w - rate * ratio * r
    return weights


def follows(seed, make, equations, *constants):
    generator = np.random.default_rng(seed)
    start = [generator.normal(size=shape) for shape in SHAPES]
    gradients = [[generator.normal(size=shape) for shape in SHAPES] for _ in range(5)]
    wanted = equations(gradients, start, *constants)
    for ours, theirs in zip(trained(make, gradients, start), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)


SEEDS, DECAYS = st.integers(0, 1000), st.floats(0, 0.1)


@given(SEEDS, st.floats(1e-3, 2.0), st.floats(0, 0.95), DECAYS)
def test_lars_follows_its_equations(seed, rate, momentum, decay):
    given = (rate, momentum, decay)
    follows(seed, lambda p: Lars(p, *given, trust=0.02), lars, *given, 0.02)


@given(SEEDS, st.floats(1e-3, 0.5), DECAYS)
def test_lamb_follows_its_equations(seed, rate, decay):
    constants = (rate, 0.9, 0.99, 1e-6, decay)
    follows(seed, lambda p: Lamb(p, rate, (0.9, 0.99), 1e-6, decay), lamb, *constants)


def server(num_workers, bound, **options):
    parameter = torch.nn.Parameter(torch.zeros(2))
    return Server(parameter, torch.optim.SGD([parameter], lr=0.5), num_workers, bound, **options)


def ones(times=1.0):
    return torch.full((2,), times)


@given(workers=st.lists(st.integers(0, 3), min_size=400, max_size=400))
def test_nobody_is_ever_further_ahead_than_the_bound(workers):
    found, bound = server(4, bound=2), 2
    clocks, free = [0] * 4, {0, 1, 2, 3}
    for worker in workers:
        if worker in free:
            free.discard(worker)
            clocks[worker] += 1
            free |= set(found.push(worker, ones()))
        assert free, "somebody can always go on"
        assert all(clocks[one] - min(clocks) <= bound for one in free)


def test_a_synchronous_step_does_not_wait_for_backup_workers():
    found = server(3, bound=0, backups=1)
    assert found.push(2, ones(1.0)) == []
    assert found.push(0, ones(3.0)) == [2, 0], "two of three gradients make the step"
    assert found.parameter.tolist() == [-1.0, -1.0], "by the mean of two"
    assert [found.tickets[one] for one in (0, 2)] == [3, 3], "of the next step of three batches"
    assert found.push(1, ones(100.0)) == [1], "the late one goes on with the newest parameters"
    assert found.parameter.tolist() == [-1.0, -1.0], "its gradient is dropped"
    assert (found.num_dropped, found.staleness) == (1, {0: 2, 1: 1})
    assert found.push(1, ones(2.0)) == [] and found.push(2, ones(2.0)) == [1, 2]
    assert found.parameter.tolist() == [-2.0, -2.0]


def test_backup_workers_may_be_gone_and_no_more():
    found = server(3, bound=0, backups=1)
    assert found.leave(1) == []
    found.push(0, ones())
    assert found.push(2, ones()) == [0, 2]
    with pytest.raises(TooFewWorkers, match=r"lost worker 2.*gradients of 2 workers"):
        found.leave(2)


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    largest=st.none() | st.integers(1, 50),
    servers=st.integers(1, 3),
)
def test_chunks_cover_every_parameter_once_and_are_never_too_large(sizes, largest, servers):
    chunks = cut(sizes, largest, servers)
    assert [chunk.number for chunk in chunks] == list(range(len(chunks)))
    assert [i for c in chunks for i in range(c.start, c.stop)] == list(range(sum(sizes)))
    ends = [sum(sizes[: p + 1]) for p in range(len(sizes))]
    for chunk in chunks:
        (parameter,) = chunk.parameters
        assert ends[parameter] - sizes[parameter] <= chunk.start < chunk.stop <= ends[parameter]
        assert chunk.stop - chunk.start <= (largest or max(sizes))
    assert {chunk.server for chunk in chunks} <= set(range(servers))


def test_more_servers_than_layers_are_refused_with_the_remedy():
    said = r"3 servers .* the 2 tensors .* Lamb needs whole; choose"
    with pytest.raises(Unsupported, match=said):
        one_each([5, 5], 3, Lamb([torch.nn.Parameter(torch.ones(1))], 0.1))


@cases("kind", *ELEMENTWISE)
def test_optimizers_that_may_be_cut_step_a_cut_vector_as_the_whole(kind):
    torch.manual_seed(0)
    whole = torch.nn.Parameter(torch.randn(8))
    start = whole.detach().clone()
    parts = [torch.nn.Parameter(part.clone()) for part in start.split([3, 5])]
    optimizers = [kind([one], lr=0.1) for one in (whole, *parts)]
    for gradient in torch.randn(4, 8):
        for one, piece in zip((whole, *parts), (gradient, *gradient.split([3, 5])), strict=True):
            one.grad = piece.clone()
        for optimizer in optimizers:
            optimizer.step()
    assert torch.equal(torch.cat([part.detach() for part in parts]), whole.detach())


@given(samples=st.integers(8, 300), clients=st.integers(1, 8), seed=st.integers(0, 9))
def test_even_clients_have_each_sample_once(samples, clients, seed):
    divided = divide_evenly(samples, clients, seed)
    assert sorted(np.concatenate(divided)) == list(range(samples))
    sizes = [len(one) for one in divided]
    assert max(sizes) - min(sizes) <= 1


def test_a_client_without_samples_is_told():
    with pytest.raises(UsageError, match=r"of 64 clients have no samples .*Choose fewer clients"):
        divide_by_class(np.arange(2000) % 10, 64, 0.001, seed=0)
    with pytest.raises(UsageError, match="1 of 9 clients have no samples"):
        divide_evenly(8, 9, seed=0)


@cases("num_ranks", *range(1, 12))
def test_models_come_together_by_the_second_eigenvalue_of_the_ring(num_ranks):
    weights = np.zeros((num_ranks, num_ranks))
    for rank in range(num_ranks):
        mixed = [rank, *neighbours(rank, num_ranks)]
        weights[rank, mixed] = 1 / len(mixed)
    assert weights.sum(0) == pytest.approx(np.ones(num_ranks)), "the mean is kept"
    values = sorted(abs(np.linalg.eigvalsh(weights)))
    assert values[-1] == pytest.approx(1)
    second = values[-2] if num_ranks > 1 else 0.0
    assert contraction(num_ranks) == pytest.approx(second, abs=1e-12)
