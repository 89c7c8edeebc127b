"""Where the watch is told of the script's doings: optimizers, backward passes, DataLoaders."""

import functools
import sys
from typing import Any

import torch
import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.problems import SPAWNS, ScriptProblem


def install(watch: Any) -> None:
    """Have the watch told from now on."""
    register_optimizer_step_post_hook(lambda optimizer, *_: watch.optimizer_called(optimizer))
    _watch_backward(watch)
    _watch_loaders(watch)
    _watch_scaler(watch)
    _watch_modes(watch)
    _watch_saving(watch)
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


def _watch_modes(watch: Any) -> None:
    """``eval()`` and ``train()`` of a module: both go through ``train``."""
    module: Any = torch.nn.Module
    original = module.train

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        watch.between.mode_changed(bool(mode))
        return original(self, mode)

    module.train = train


def _watch_saving(watch: Any) -> None:
    saved: Any = torch
    saved.save = watch.between.saving(torch.save)

    def watch_checkpoints() -> None:
        checkpoint: Any = sys.modules["torch.distributed.checkpoint"]
        for name in ("save", "async_save"):
            if hasattr(checkpoint, name):
                setattr(checkpoint, name, watch.between.saving(getattr(checkpoint, name)))

    after_import_of("torch.distributed.checkpoint", watch_checkpoints)


def _refuse_spawn() -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ScriptProblem(SPAWNS)

    multiprocessing: Any = torch.multiprocessing
    multiprocessing.spawn = refuse
    multiprocessing.start_processes = refuse
