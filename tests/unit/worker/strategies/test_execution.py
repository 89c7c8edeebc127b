import itertools
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from scalebench.costmodel.memory import STATES
from scalebench.spec import Pipeline, Plain
from scalebench.spec.presets import GptShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.execution import optimizer_kind, prepare_module
from scalebench.worker.strategies.frameworks import horovod
from scalebench.worker.strategies.mesh import ring
from scalebench.worker.strategies.pipeline_stages import cut
from scalebench.worker.strategies.pipelining import inputs_of
from scalebench.worker.workloads import build_workload
from tests.examples import cases

CPU = torch.device("cpu")
WITH = {"momentum": {"momentum": 0.9}, "amsgrad": {"amsgrad": True}}


@cases("kind", *STATES)
def test_the_state_of_an_optimizer_is_as_large_as_the_cost_model_says(kind):
    name, _, option = kind.partition(" with ")
    parameter = nn.Parameter(torch.ones(1000))
    optimizer = getattr(torch.optim, name)([parameter], lr=0.1, **WITH.get(option, {}))
    assert optimizer_kind(optimizer) == kind
    parameter.sum().backward()
    optimizer.step()
    tensors = [t for t in optimizer.state[parameter].values() if isinstance(t, torch.Tensor)]
    assert sum(t.numel() for t in tensors if t.numel() == 1000) == STATES[kind] * 1000
    assert sum(t.numel() for t in tensors if t.numel() != 1000) <= 2  # counters


SWITCHES = {
    "pass": (False, True),
    "torch.set_float32_matmul_precision('high')": (True, True),
    "torch.backends.cuda.matmul.allow_tf32 = True": (True, True),
    "torch.backends.cudnn.allow_tf32 = False": (False, False),
    "torch.backends.fp32_precision = 'tf32'": (True, True),
    "torch.backends.fp32_precision = 'ieee'": (False, False),
    "torch.backends.cuda.matmul.fp32_precision = 'tf32'": (True, True),
    "torch.backends.cudnn.conv.fp32_precision = 'ieee'": (False, False),
}
"""Statement → whether matrix products and convolutions may then run in TF32."""


@pytest.mark.slow
def test_every_switch_of_torch_for_tf32_is_read():
    """Each in a process of its own: after some switches torch refuses to read the others."""
    script = f"""
import os
import torch
from scalebench.worker.strategies.execution import tf32_in_force
torch.cuda.is_tf32_supported = lambda: True
for switch in {list(SWITCHES)!r}:
    if os.fork() == 0:
        exec(switch)
        print(*tf32_in_force(torch.device("cuda")).values(), flush=True)
        os._exit(0)
    os.wait()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    found = [tuple(line.split()) for line in done.stdout.splitlines()]
    assert found == [(str(a), str(b)) for a, b in SWITCHES.values()], done.stderr


TINY = GptShape(name="tiny", layers=3, heads=2, width=16, context=8, batch_size=4)
NAMELESS = Workload(nn.Linear(2, 2), [], lambda module, batch: module(batch).sum())
ONE = horovod.Host("one", "127.0.0.1", "127.0.0.1")
A, B = (horovod.Host("a", "10.0.0.1", "10.0.0.1"), horovod.Host("b", "10.0.0.2", "192.168.0.2"))
NAMED = A._replace(address_of_name="127.0.1.1")
reach = horovod.refuse_without_addresses


@cases(
    "ask, said",
    (lambda: prepare_module(NAMELESS, Plain(checkpointing="selective"), CPU), "names its block"),
    (lambda: inputs_of(lambda module, batch: module(x=batch), torch.ones(2)), "must call module"),
    (lambda: inputs_of(lambda module, batch: batch.sum(), torch.ones(2)), "does not call the mo"),
    (
        lambda: cut(Pipeline(), build_workload(TINY, Shard(0, 1, 4, 0, CPU)), 6, CPU),
        "6 stages need as many layers, and there are 5",
    ),
    (lambda: cut(Pipeline(), NAMELESS, 2, CPU), r"names its layers: Workload\(layers"),
    *((lambda fine=fine: reach(fine), None) for fine in ([ONE, ONE], [A, B], [NAMED, NAMED])),
    (lambda: reach([ONE, ONE._replace(name="two")]), "GLOO_SOCKET_IFNAME=eth0"),
    (lambda: reach([NAMED, B]), "a is 127.0.1.1, which other hosts cannot reach"),
    (lambda: horovod.refuse_without_nccl("cuda", True), None),
    (lambda: horovod.refuse_without_nccl("cpu", False), None),
    (lambda: horovod.refuse_without_nccl("cuda", False), "OPERATIONS=NCCL make horovod"),
)
def test_what_a_strategy_cannot_do_is_refused_with_the_reason(ask, said):
    if said is None:
        ask()
        return
    with pytest.raises(Unsupported, match=said):
        ask()


@given(ranks=st.integers(1, 8), chunk=st.integers(1, 5))
def test_every_token_is_on_one_rank(ranks, chunk):
    tokens = 2 * ranks * chunk
    for order in (ring.places_in_order, ring.places_in_zigzag):
        told = [place for rank in range(ranks) for place in order(tokens, ranks, rank)]
        assert sorted(told) == list(range(tokens))


def drawn(seed, *shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@given(
    seed=st.integers(0, 1000),
    cuts=st.sets(st.integers(1, 11), max_size=4),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
)
def test_parts_merge_into_the_attention_to_all_keys(seed, cuts, scale):
    q = scale * drawn(seed, 2, 3, 5, 4)
    k, v = (scale * drawn(seed + i, 2, 3, 12, 4) for i in (1, 2))
    ends = itertools.pairwise([0, *sorted(cuts), 12])
    parts = [ring.attend(q, k[:, :, a:b], v[:, :, a:b], causal=False) for a, b in ends]
    merging = ring.Merging(parts[0])
    for part in parts[1:]:
        merging.add(part, slice(None))
    scores = q.double() @ k.double().transpose(-1, -2) / 2
    largest = float((q.abs() @ k.abs().transpose(-1, -2)).max() / 2)
    rounded = 1e-5 + torch.finfo(torch.float32).eps * largest  # of an exponent: of its power
    wanted = scores.softmax(-1) @ v.double()
    found = merging.output.double(), merging.log_sum_exp.double()
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=rounded * float(v.abs().max()))
    torch.testing.assert_close(found[1], scores.logsumexp(-1), rtol=0, atol=rounded)


def test_the_operators_of_a_gpu_are_called_as_torch_declares_them():
    """A new signature in torch has to be noticed where there is no GPU."""
    forward = torch.ops.aten._scaled_dot_product_flash_attention.default._schema
    backward = torch.ops.aten._scaled_dot_product_flash_attention_backward.default._schema
    given, returned, back = (
        " ".join(one.name for one in names)
        for names in (forward.arguments, forward.returns, backward.arguments)
    )
    assert given.startswith("query key value dropout_p is_causal ")
    assert returned.startswith("output logsumexp cum_seq_q cum_seq_k max_q max_k ")
    assert len(returned.split()) == 9
    assert back.startswith(
        "grad_out query key value out logsumexp cum_seq_q cum_seq_k max_q max_k dropout_p"
        " is_causal philox_seed philox_offset"
    )
