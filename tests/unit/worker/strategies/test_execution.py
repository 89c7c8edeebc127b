"""What the worker says of how a rank computes."""

import subprocess
import sys

import pytest
import torch

from scalebench.costmodel.memory import STATES
from scalebench.spec import Plain
from scalebench.spec.workload import Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.execution import optimizer_kind, prepare_module

OPTIONS = {
    "SGD": {},
    "SGD with momentum": {"momentum": 0.9},
    "Adagrad": {},
    "RMSprop": {},
    "RMSprop with momentum": {"momentum": 0.9},
    "Adam": {},
    "AdamW": {},
    "NAdam": {},
    "RAdam": {},
    "Adam with amsgrad": {"amsgrad": True},
    "AdamW with amsgrad": {"amsgrad": True},
}


@pytest.mark.parametrize("kind", STATES)
def test_the_state_of_an_optimizer_is_as_large_as_the_cost_model_says(kind):
    parameter = torch.nn.Parameter(torch.ones(1000))
    optimizer = getattr(torch.optim, kind.split()[0])([parameter], lr=0.1, **OPTIONS[kind])
    assert optimizer_kind(optimizer) == kind
    parameter.sum().backward()
    optimizer.step()
    tensors = [t for t in optimizer.state[parameter].values() if isinstance(t, torch.Tensor)]
    assert sum(t.numel() for t in tensors if t.numel() == 1000) == STATES[kind] * 1000
    assert sum(t.numel() for t in tensors if t.numel() != 1000) <= 2  # counters


def test_blocks_to_recompute_have_to_be_named():
    workload = Workload(torch.nn.Linear(1, 1), [], lambda module, batch: module(batch).sum())
    with pytest.raises(Unsupported, match="names its blocks"):
        prepare_module(workload, Plain(checkpointing="selective"), torch.device("cpu"))


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
