"""What servers keep: equal parts, or whole layers for an optimizer that needs these."""

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.optimizers import Lamb, Lars
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.chunk_server import ChunkServer
from scalebench.worker.strategies.asynchronous.chunks import cut
from scalebench.worker.strategies.asynchronous.division import (
    ELEMENTWISE,
    bounds_between_layers,
    equal_bounds,
    layers_within,
    needs_whole_layers,
)
from scalebench.worker.strategies.asynchronous.server import Server

SHAPES = [torch.Size(shape) for shape in ((6, 4), (6,), (3, 6), (3,), (2, 3))]
SIZES = [shape.numel() for shape in SHAPES]
OPTIMIZER = Lamb([torch.nn.Parameter(torch.ones(1))], 0.1)


class Own(torch.optim.SGD):
    """An optimizer of somebody else: nobody knows what it looks at."""


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9), data=st.data())
def test_every_server_has_whole_layers_and_at_least_one(sizes, data):
    servers = data.draw(st.integers(1, len(sizes)))
    bounds = bounds_between_layers(sizes, servers, OPTIMIZER)
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    assert len(bounds) == servers + 1 and (bounds[0], bounds[-1]) == (0, ends[-1])
    assert bounds == sorted(set(bounds)) and set(bounds) <= set(ends)
    parts = itertools.pairwise(bounds)
    shapes = [torch.Size((size,)) for size in sizes]
    found = [layers_within(torch.zeros(stop - start), start, shapes) for start, stop in parts]
    assert [len(layer) for part in found for layer in part] == sizes


def test_bounds_are_the_ends_of_layers_next_to_equal_parts():
    assert bounds_between_layers([10] * 6, 3, OPTIMIZER) == equal_bounds(60, 3) == [0, 20, 40, 60]
    assert bounds_between_layers([100, 1, 1], 3, OPTIMIZER) == [0, 100, 101, 102]


def test_more_servers_than_layers_are_refused_with_the_remedy():
    with pytest.raises(
        Unsupported, match=r"3 servers .* the 2 tensors .* Lamb needs whole; choose"
    ):
        bounds_between_layers([5, 5], 3, OPTIMIZER)


def test_layers_are_whole_for_every_optimizer_that_is_not_known():
    one = [torch.nn.Parameter(torch.ones(2))]
    assert not any(needs_whole_layers(kind(one)) for kind in ELEMENTWISE)
    assert all(needs_whole_layers(kind(one, 0.1)) for kind in (Lars, Lamb, Own))


@pytest.mark.parametrize("kind", ELEMENTWISE)
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


def trained_whole(make, start, steps):
    """Return the parameters, shape [Ψ], that one process gets."""
    layers = layers_within(start.clone(), 0, SHAPES)
    optimizer = make(layers)
    for gradient in steps:
        for layer, part in zip(layers, gradient.split(SIZES), strict=True):
            layer.grad = part.view_as(layer).clone()
        optimizer.step()
    return torch.cat([layer.detach().flatten() for layer in layers])


@pytest.mark.parametrize("kind", [Lars, Lamb])
@pytest.mark.parametrize("num_servers", [1, 2, 3])
def test_servers_step_whole_layers_as_one_process_does(kind, num_servers):
    torch.manual_seed(0)
    start, gradients = torch.randn(sum(SIZES)), torch.randn(4, 2, sum(SIZES))

    def make(layers):
        return kind(layers, 0.1, weight_decay=0.01)

    expected = trained_whole(make, start, gradients.mean(1))
    bounds = bounds_between_layers(SIZES, num_servers, OPTIMIZER)
    found = []
    for first, last in itertools.pairwise(bounds):
        part = torch.nn.Parameter(start[first:last].clone())
        layers = layers_within(part.detach(), first, SHAPES)
        server = Server(part, make(layers), 2, 0, layers=layers)
        for of_workers in gradients:
            for worker, gradient in enumerate(of_workers):
                server.push(worker, gradient[first:last])
        found.append(part.detach())
    assert torch.cat(found) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("kind", [Lars, Lamb])
def test_a_server_of_chunks_steps_whole_layers_as_one_process_does(kind):
    torch.manual_seed(0)
    start, gradients = torch.randn(sum(SIZES)), torch.randn(4, 2, sum(SIZES))

    def make(layers):
        return kind(layers, 0.1, weight_decay=0.01)

    values, chunks = start.clone(), cut(SIZES, None, 1)
    server = ChunkServer(values, chunks, 2, make, SHAPES)
    for of_workers in gradients:
        for chunk in reversed(chunks):
            for gradient in of_workers:
                server.push(chunk.number, gradient[chunk.part])
    assert values == pytest.approx(trained_whole(make, start, gradients.mean(1)), abs=1e-6)
