"""Where the watch is told of the script's doings: optimizers, backward passes, DataLoaders."""

import functools
import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import dataloader

from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.problems import SPAWNS, ScriptProblem


class Hooks:
    """What was put in the place of torch's own functions, and how to take it away again."""

    def __init__(self) -> None:
        self._undo: list[Callable[[], None]] = []

    def put(self, owner: Any, name: str, replacement: Any) -> None:
        """Replace an attribute that the owner itself has."""
        original = getattr(owner, name)
        setattr(owner, name, replacement)
        self._undo.append(lambda: setattr(owner, name, original))

    def then(self, undo: Callable[[], None]) -> None:
        """Have something else undone, too."""
        self._undo.append(undo)

    def remove(self) -> None:
        """Leave torch as it was."""
        while self._undo:
            self._undo.pop()()


def install(watch: Any) -> Hooks:
    """Have the watch told from now on."""
    hooks = Hooks()
    handle = register_optimizer_step_post_hook(
        lambda optimizer, *_: watch.optimizer_called(optimizer)
    )
    hooks.then(handle.remove)
    _watch_backward(watch, hooks)
    _watch_loaders(watch, hooks)
    _watch_scaler(watch, hooks)
    _watch_modes(watch, hooks)
    _watch_saving(watch, hooks)
    _refuse_spawn(hooks)
    watch.traffic.install(hooks.put)
    watch.inputs.begin()
    hooks.then(watch.inputs.end)
    return hooks


def _watch_backward(watch: Any, hooks: Hooks) -> None:
    """Every backward pass goes through one function of torch's.

    One inside another belongs to it: reentrant activation checkpointing.
    """
    autograd: Any = torch.autograd
    names = [name for name in ("_engine_run_backward",) if hasattr(autograd, name)]
    for name in names or ["backward", "grad"]:
        hooks.put(autograd, name, _with_call_before(getattr(autograd, name), watch.backward))


def _with_call_before(function: Any, call: Any) -> Any:
    running = False

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        nonlocal running
        if running:
            return function(*args, **kwargs)
        call()
        running = True
        try:
            return function(*args, **kwargs)
        finally:
            running = False

    return wrapper


def _watch_loaders(watch: Any, hooks: Hooks) -> None:
    iterator: Any = dataloader._BaseDataLoaderIter
    original = iterator.__next__

    @functools.wraps(original)
    def watched(self: Any) -> Any:
        watch.begin()
        return watch.batches.next_of(self, original)

    hooks.put(iterator, "__next__", watched)
    ask = iterator._next_index

    @functools.wraps(ask)
    def asking(self: Any) -> Any:
        index = ask(self)
        watch.batches.asked_for(self, index)
        return index

    hooks.put(iterator, "_next_index", asking)


def _watch_scaler(watch: Any, hooks: Hooks) -> None:
    """A GradScaler that finds infinities leaves the optimizer out: it is a step all the same."""
    scaler: Any = torch.amp.GradScaler
    original = scaler.step

    @functools.wraps(original)
    def step(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        answer = original(self, optimizer, *args, **kwargs)
        watch.optimizer_called(optimizer)
        return answer

    hooks.put(scaler, "step", step)


def _watch_modes(watch: Any, hooks: Hooks) -> None:
    """``eval()`` and ``train()`` of a module: both go through ``train``."""
    module: Any = torch.nn.Module
    original = module.train

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        watch.between.mode_changed(bool(mode))
        return original(self, mode)

    hooks.put(module, "train", train)


def _watch_saving(watch: Any, hooks: Hooks) -> None:
    hooks.put(torch, "save", watch.between.saving(torch.save))

    def watch_checkpoints() -> None:
        checkpoint: Any = sys.modules["torch.distributed.checkpoint"]
        for name in ("save", "async_save"):
            if hasattr(checkpoint, name):
                hooks.put(checkpoint, name, watch.between.saving(getattr(checkpoint, name)))

    after_import_of("torch.distributed.checkpoint", watch_checkpoints)


def _refuse_spawn(hooks: Hooks) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ScriptProblem(SPAWNS)

    for name in ("spawn", "start_processes"):
        hooks.put(torch.multiprocessing, name, refuse)
