"""Where the watch is told of the script's doings: optimizers, backward passes, DataLoaders."""

import functools
from typing import Any

import torch
import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from scalebench.worker.attach.problems import SPAWNS, ScriptProblem


def install(watch: Any) -> None:
    """Have the watch told from now on."""
    register_optimizer_step_post_hook(lambda optimizer, *_: watch.optimizer_called(optimizer))
    _watch_backward(watch)
    _watch_loaders(watch)
    _watch_scaler(watch)
    _refuse_spawn()


def _watch_backward(watch: Any) -> None:
    """Every backward pass goes through one function of torch's."""
    autograd: Any = torch.autograd
    names = [name for name in ("_engine_run_backward",) if hasattr(autograd, name)]
    for name in names or ["backward", "grad"]:
        setattr(autograd, name, _with_call_before(getattr(autograd, name), watch.backward))


def _with_call_before(function: Any, call: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        call()
        return function(*args, **kwargs)

    return wrapper


def _watch_loaders(watch: Any) -> None:
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def watched(self: Any) -> Any:
        watch.begin()
        return watch.batches.next_of(self, original)

    iterator.__next__ = watched


def _watch_scaler(watch: Any) -> None:
    """A GradScaler that finds infinities leaves the optimizer out: it is a step all the same."""
    scaler: Any = torch.amp.GradScaler
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, optimizer, *args, **kwargs)
        watch.optimizer_called(optimizer)
        return answer

    scaler.step = step


def _refuse_spawn() -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ScriptProblem(SPAWNS)

    multiprocessing: Any = torch.multiprocessing
    multiprocessing.spawn = refuse
    multiprocessing.start_processes = refuse
