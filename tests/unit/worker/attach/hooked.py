"""Trains in several ways with the hooks installed; prints how many steps were seen of each.

A program of its own: the hooks change torch for the whole process.
"""

import io
import itertools
import json
import sys
import tempfile
import time
import types

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from scalebench.worker.attach import hooks
from scalebench.worker.attach.batches import Batches, Inputs
from scalebench.worker.attach.checks import Checks
from scalebench.worker.attach.checks.replicas import Made
from scalebench.worker.attach.hooks import SEEN, Between, OptimizerCalls, catch_up
from scalebench.worker.attach.traffic import ScriptProblem, TrafficWatch
from scalebench.worker.portable import HostClock

STEPS = 3


class Counter:
    def __init__(self):
        self.calls = OptimizerCalls()
        self.batches = Batches(HostClock())
        self.between = Between()
        self.traffic = TrafficWatch()
        self.inputs = Inputs()
        self.made = Made()
        self.checks = Checks("cpu", 1, self.made)
        self.seen = 0
        self.loaded = 0

    def begin(self):
        pass

    def loads(self, *_, **__):
        self.loaded += 1

    def backward(self, _=None):
        self.calls.backward()
        self.batches.backward()

    def optimizer_called(self, optimizer):
        self.seen += self.calls.matters(id(optimizer))


def loss_of(model):
    return model(torch.ones(4, 8)).square().mean()


def train(model, step, backwards=1):
    """Train with so many backward passes before each step."""
    for _ in range(STEPS):
        for _ in range(backwards):
            loss_of(model).backward()
        step()


def sgd(model):
    return torch.optim.SGD(model.parameters())


def closure(model):
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)

    def evaluate():
        optimizer.zero_grad()
        loss = loss_of(model)
        loss.backward()
        return loss

    for _ in range(STEPS):
        optimizer.step(evaluate)


def by_grad(model):
    optimizer, parameters = sgd(model), list(model.parameters())
    for _ in range(STEPS):
        gradients = torch.autograd.grad(loss_of(model), parameters)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


def step_in_backward(model):
    for parameter in model.parameters():
        optimizer = torch.optim.SGD([parameter])
        parameter.register_post_accumulate_grad_hook(lambda _, one=optimizer: one.step())


def in_backward(model):
    step_in_backward(model)
    train(model, lambda: None)


def in_backward_with_checkpoints(model):
    """A reentrant checkpoint runs a backward pass of its own inside the backward pass."""
    step_in_backward(model)
    for _ in range(STEPS):
        hidden = torch.ones(4, 8, requires_grad=True)
        for _ in range(2):
            hidden = checkpoint(lambda x: model(x).repeat(1, 4), hidden, use_reentrant=True)
        hidden.square().mean().backward()


def outer_in_post_hook(model):
    """DiLoCo: the outer optimizer runs every other step, out of the inner one's post-hook."""
    optimizer, outer, calls = sgd(model), sgd(model), itertools.count()
    optimizer.register_step_post_hook(lambda *_: outer.step() if next(calls) % 2 else None)
    train(model, optimizer.step)


def several_after_one_backward(model):
    optimizers = [torch.optim.SGD([parameter]) for parameter in model.parameters()]
    train(model, lambda: [optimizer.step() for optimizer in optimizers])


def scaled_with_one_skipped(model):
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu")
    for step in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) * (float("inf") if step == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()


class OwnStep(torch.optim.Optimizer):
    """Can be compiled as a whole graph, which torch's own cannot."""

    def __init__(self, parameters):
        super().__init__(parameters, {"lr": 1e-3})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"])


def compiled(model):
    train(model, torch.compile(sgd(model).step, backend="eager"))


def compiled_around(model):
    optimizer = torch.optim.Adam(model.parameters())
    train(model, torch.compile(lambda: optimizer.step(), backend="eager"))


def compiled_whole(model):
    optimizer = OwnStep(model.parameters())
    train(model, torch.compile(lambda: optimizer.step(), backend="eager", fullgraph=True))


def compiled_step(model):
    """The whole step, with what else is watched in it."""
    optimizer = torch.optim.Adam(model.parameters())

    @torch.compile(backend="eager")
    def step():
        model.train()
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()

    before = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    for _ in range(STEPS):
        step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] - before <= 3


class NoGraph:
    """Stands for torch.cuda.CUDAGraph, of which there is none without CUDA."""

    def capture_end(self):
        pass

    def replay(self):
        pass


def played_graph(model):
    """What `Watch` leaves of an optimizer that is called while a graph is captured."""
    other, graph = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
    other.capture_end()
    SEEN.captured = sgd(model)
    graph.capture_end()
    for _ in range(STEPS):
        other.replay()
        graph.replay()


def played_pass(model):
    """Forward and backward are played, the optimizer is called (PyTorch's example of AMP)."""
    optimizer, graph = sgd(model), torch.cuda.CUDAGraph()
    SEEN.captured_pass = True
    graph.capture_end()
    for _ in range(STEPS):
        graph.replay()
        optimizer.step()


def with_workers(model):
    loader = DataLoader(TensorDataset(torch.ones(STEPS * 4, 8)), batch_size=4, num_workers=1)
    optimizer = sgd(model)
    for (inputs,) in loader:
        model(inputs).mean().backward()
        optimizer.step()


WAYS = {
    "plain": lambda model: train(model, torch.optim.AdamW(model.parameters()).step),
    "accumulated": lambda model: train(model, sgd(model).step, backwards=4),
    "zero": lambda model: train(
        model, ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW).step
    ),
}
WAYS |= {
    way.__name__: way
    for way in (
        *(closure, by_grad, in_backward, in_backward_with_checkpoints, outer_in_post_hook),
        *(several_after_one_backward, scaled_with_one_skipped, compiled, compiled_around),
        *(compiled_whole, compiled_step, played_graph, played_pass, with_workers),
    )
}


def gaps(counter):
    """Evaluate and save; yield whether each was seen to last at least as long as it did."""

    def seen(name, lasts):
        told = counter.between.take()
        return name, int(told is not None and lasts(told.evaluation_s, told.checkpoint_s))

    counter.between.take()
    model = nn.Linear(2, 2)
    model.eval()
    time.sleep(0.02)
    model.train()
    yield seen("evaluated", lambda evaluation_s, saved_s: evaluation_s >= 0.02 and not saved_s)
    batches = iter(DataLoader(TensorDataset(torch.zeros(4, 2))))
    next(batches)
    model.eval()  # Lightning sets the modes back without a call
    with torch.no_grad():
        next(batches)
        time.sleep(0.02)
    next(batches)
    yield seen("evaluated till a batch", lambda evaluation_s, _: 0.02 <= evaluation_s < 1)
    model.eval()  # a part that is frozen
    next(batches)
    yield "frozen", int(counter.between.take() is None)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    yield seen("saved", lambda evaluation_s, saved_s: saved_s > 0 == evaluation_s)
    began = time.monotonic()
    model.eval()
    torch.save(model.state_dict(), io.BytesIO())
    model.train()
    lasted = time.monotonic() - began
    yield seen("saved while evaluating", lambda *both: 0 < sum(both) <= lasted)
    sys.modules["transformers.trainer"].Trainer()._save_checkpoint()
    yield seen("saved by transformers", lambda _, saved_s: saved_s >= 0.01)
    sys.modules["safetensors.torch"].save_file({}, "file")
    yield seen("saved by safetensors", lambda _, saved_s: saved_s >= 0.01)
    file.seek(0)
    torch.load(file)
    with tempfile.TemporaryDirectory() as folder:
        dcp.save(model.state_dict(), checkpoint_id=folder)
        dcp.load(model.state_dict(), checkpoint_id=folder)
    yield "loaded", int(counter.loaded >= 2)
    yield seen("saved by dcp", lambda _, saved_s: saved_s > 0)
    with tempfile.TemporaryDirectory() as folder:  # the stall, and nothing else
        began = time.monotonic()
        pending = dcp.async_save(model.state_dict(), checkpoint_id=folder)
        called_s = time.monotonic() - began
        stall = seen("saved asynchronously", lambda _, s: 0.5 * called_s < s <= called_s)
        pending.result()
    yield stall
    yield "nothing in the background", int(counter.between.take() is None)
    model.eval()
    yield "nothing", int(counter.between.take() is None)


def stand_in(name, **content):
    sys.modules[name] = types.ModuleType(name)
    vars(sys.modules[name]).update(content)


def counted():
    counter = Counter()
    trainer = type("Trainer", (), {"_save_checkpoint": lambda _: time.sleep(0.01)})
    stand_in("transformers.trainer", Trainer=trainer)
    stand_in("safetensors.torch", save_file=lambda *_: time.sleep(0.01))
    torch.cuda.CUDAGraph = NoGraph
    hooks.install(counter)
    for name, way in WAYS.items():
        before = counter.seen
        way(nn.Linear(8, 2))
        catch_up(counter)
        yield f"steps of {name}", counter.seen - before
    yield from gaps(counter)
    yield "samples", counter.batches.take().samples
    try:
        torch.multiprocessing.spawn(print)
    except ScriptProblem:
        yield "spawn refused", 1


if __name__ == "__main__":
    with tempfile.NamedTemporaryFile() as file:
        store = dist.FileStore(file.name, 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        json.dump(dict(counted()), sys.stdout)
        dist.destroy_process_group()
