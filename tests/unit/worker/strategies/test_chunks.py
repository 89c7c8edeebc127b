"""Chunks: how parameters are cut, what is sent next, and a server that steps chunk by chunk."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.worker.strategies.asynchronous.chunk_server import ChunkServer
from scalebench.worker.strategies.asynchronous.chunks import Waiting, cut, need_of_parameters


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
        assert ends[chunk.parameter] - sizes[chunk.parameter] <= chunk.start < chunk.stop
        assert chunk.stop <= ends[chunk.parameter], "a chunk is a piece of one parameter"
        assert chunk.stop - chunk.start <= (largest or max(sizes))
    assert {chunk.server for chunk in chunks} <= set(range(servers))


def test_each_server_has_about_as_much():
    chunks = cut([1000, 10, 1000], 100, 2)
    loads = [sum(c.stop - c.start for c in chunks if c.server == s) for s in range(2)]
    assert abs(loads[0] - loads[1]) <= 100


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
            if chunk.parameter == parameter:
                waiting.put(chunk.number, need=parameter)
        order += [waiting.pop() for _ in range(min(sends_between, len(waiting)))]
    while waiting:
        order.append(waiting.pop())
    assert sorted(order) == list(range(len(chunks)))
    return [chunks[number].parameter for number in order], waiting.num_overtakes


def test_plain_order_sends_whole_tensors_as_the_backward_pass_makes_them():
    assert sent(False, [2, 4, 4], None, sends_between=0) == ([2, 1, 0], 0)


def test_by_need_the_first_layers_go_first_and_a_large_tensor_is_interrupted():
    """Between two gradients the link takes one chunk: two of the last layer's four are left."""
    assert sent(True, [2, 4, 4], 2, sends_between=0) == ([0, 1, 1, 2, 2], 3)
    assert sent(True, [2, 4, 8], 2, sends_between=1) == ([2, 1, 0, 1, 2, 2, 2], 3)


def test_without_chunks_a_large_tensor_is_not_interrupted():
    assert sent(True, [2, 4, 8], None, sends_between=1) == ([2, 1, 0], 0)


def test_a_fast_link_sends_as_the_backward_pass_goes():
    assert sent(True, [2, 4, 8], 2, sends_between=9) == ([2, 2, 2, 2, 1, 1, 0], 0)


def test_need_is_the_order_in_which_layers_came_in_the_forward_pass():
    """Parameter 1 is shared by two layers, and no layer announces parameter 3."""
    assert need_of_parameters(4, fired=[[1], [2], [1], [0]]) == [3, 0, 1, -1]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_steps_by_chunk_are_the_steps_of_the_whole(kind):
    torch.manual_seed(0)
    values = torch.randn(10)
    whole = torch.nn.Parameter(values.clone())
    reference = kind([whole], lr=0.1)
    chunks = cut([7, 3], 4, 1)
    server = ChunkServer(values, chunks, 2, lambda parameters: kind(parameters, lr=0.7))
    for rate in (0.1, 0.02):
        gradients = torch.randn(2, 10)
        reference.param_groups[0]["lr"] = rate
        whole.grad = gradients.mean(0)
        reference.step()
        for chunk in reversed(chunks):
            server.set_rate(chunk.number, rate)
            stepped = [server.push(chunk.number, gradient[chunk.part]) for gradient in gradients]
            assert stepped == [False, True]
    assert values == pytest.approx(whole.detach(), abs=1e-6)
