"""Chunks: how parameters are cut, who keeps them, what is sent next, and steps by chunk."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.optimizers import Lamb, Lars
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.chunks import (
    ELEMENTWISE,
    Waiting,
    cut,
    layers_within,
    need_of_parameters,
    one_each,
)
from scalebench.worker.strategies.asynchronous.server import Server

SHAPES = [torch.Size(shape) for shape in ((6, 4), (6,), (3, 6), (3,), (2, 3))]
SIZES = [shape.numel() for shape in SHAPES]
OPTIMIZER = Lamb([torch.nn.Parameter(torch.ones(1))], 0.1)


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


def sent(by_need, sizes, largest, sends_between):
    """Return the parameters of the chunks in the order of sending, in a backward pass.

    Args:
        by_need: See `Waiting`.
        sizes: Of the parameters, in the order of need; the backward pass comes in the other order.
        largest: Of a chunk.
        sends_between: How many chunks the link takes between two gradients.
    """
    chunks = cut(sizes, largest, 1)
    waiting, order = Waiting(by_need), []
    for parameter in reversed(range(len(sizes))):
        for chunk in chunks:
            if chunk.parameters == (parameter,):
                waiting.put(chunk.number, need=parameter)
        order += [waiting.pop() for _ in range(min(sends_between, len(waiting)))]
    while waiting:
        order.append(waiting.pop())
    assert sorted(order) == list(range(len(chunks)))
    return [chunks[number].parameters[0] for number in order], waiting.num_overtakes


def test_by_need_the_first_layers_go_first_and_a_large_tensor_is_interrupted():
    """Between two gradients the link takes one chunk: two of the last layer's four are left."""
    assert sent(True, [2, 4, 4], 2, sends_between=0) == ([0, 1, 1, 2, 2], 3)
    assert sent(True, [2, 4, 8], 2, sends_between=1) == ([2, 1, 0, 1, 2, 2, 2], 3)


def test_need_is_the_order_in_which_layers_came_in_the_forward_pass():
    """Parameter 1 is shared by two layers, and no layer announces parameter 3."""
    assert need_of_parameters(4, fired=[[1], [2], [1], [0]]) == [3, 0, 1, -1]


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=9), data=st.data())
def test_every_server_has_whole_layers_and_at_least_one(sizes, data):
    chunks = one_each(sizes, data.draw(st.integers(1, len(sizes))), OPTIMIZER)
    assert [p for chunk in chunks for p in chunk.parameters] == list(range(len(sizes)))
    shapes = [torch.Size((size,)) for size in sizes]
    found = [layers_within(torch.zeros(c.stop - c.start), c.start, shapes) for c in chunks]
    assert [len(layer) for part in found for layer in part] == sizes


def test_more_servers_than_layers_are_refused_with_the_remedy():
    with pytest.raises(
        Unsupported, match=r"3 servers .* the 2 tensors .* Lamb needs whole; choose"
    ):
        one_each([5, 5], 3, OPTIMIZER)


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


@pytest.mark.parametrize("kind", [Lars, Lamb])
@pytest.mark.parametrize(
    "chunks",
    [*(one_each(SIZES, servers, OPTIMIZER) for servers in (1, 2, 3)), cut(SIZES, None, 1)],
    ids=["1 server", "2 servers", "3 servers", "a server of single layers"],
)
def test_servers_step_whole_layers_as_one_process_does(kind, chunks):
    torch.manual_seed(0)
    start, gradients = torch.randn(sum(SIZES)), torch.randn(4, 2, sum(SIZES))
    whole = layers_within(start.clone(), 0, SHAPES)
    optimizer = kind(whole, 0.1, weight_decay=0.01)
    for gradient in gradients.mean(1):
        for layer, part in zip(whole, gradient.split(SIZES), strict=True):
            layer.grad = part.view_as(layer).clone()
        optimizer.step()
    found = []
    for chunk in chunks:
        part = torch.nn.Parameter(start[chunk.part].clone())
        layers = layers_within(part.detach(), chunk.start, SHAPES)
        server = Server(part, kind(layers, 0.1, weight_decay=0.01), 2, 0, layers=layers)
        for of_workers in gradients:
            released = [
                server.push(w, gradient[chunk.part]) for w, gradient in enumerate(of_workers)
            ]
            assert released == [[], [0, 1]]
        found.append(part.detach())
    expected = torch.cat([layer.detach().flatten() for layer in whole])
    assert torch.cat(found) == pytest.approx(expected, abs=1e-6)
