"""The user's own workload: ``--workload module:function``.

All that can go wrong in code that scalebench did not write is told here as one `UsageError`, with
the place in the user's file. Running out of memory is not among it: that is a result of the run.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import import_module
from inspect import isfunction
from itertools import chain
from types import ModuleType
from typing import Any

import torch

from scalebench.errors import UsageError, unknown_name
from scalebench.spec.presets import NAMED, CustomTarget
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import classify

_RETURN = "Return scalebench.Workload(module=..., batches=..., loss=...)."

# A module may end the interpreter while it is imported (a script without its `__main__` guard).
_USER_ERRORS = (Exception, SystemExit)


def build_custom(spec: CustomTarget, shard: Shard) -> Workload:
    """Import the user's function and call it with ``shard``.

    Returns:
        The user's workload, checked, its batches known to hold at least one.

    Raises:
        UsageError: The function cannot be found or called, or what it returns is no workload.
    """
    module = _import(spec)
    function = _function(spec, module)
    try:
        returned = function(*((spec.name,) if spec.module == NAMED else ()), shard)
    except _USER_ERRORS as error:
        if classify(error) == "oom" or spec.module == NAMED:
            raise
        raise _failed(spec, module, "raised", error) from error
    workload = _checked(spec, returned)
    batches = _checked_batches(spec, module, workload.batches)
    return replace(workload, batches=batches)


def _import(spec: CustomTarget) -> ModuleType:
    folder = os.getcwd()
    # It stays there: the function may import its neighbours when it is called.
    if sys.path[0] != folder:
        sys.path.insert(0, folder)
    try:
        return import_module(spec.module)
    except _USER_ERRORS as error:
        if classify(error) == "oom":
            raise
        raise UsageError(
            f"--workload {spec.name}: the module {spec.module!r} cannot be imported "
            f"({_describe(error)}). It must be in {folder} or installed, and "
            f'`python -c "import {spec.module}"` must work there.'
        ) from error


def _function(spec: CustomTarget, module: ModuleType) -> Callable[..., Any]:
    try:
        function = getattr(module, spec.function)
    except AttributeError as error:
        public = [
            name
            for name, value in vars(module).items()
            if isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
        ]
        raise unknown_name(f"{spec.module} function", spec.function, public) from error
    if not callable(function):
        raise UsageError(
            f"--workload {spec.name}: {spec.function!r} is {_a(function)}, which cannot be "
            "called. Name a function that takes a scalebench.Shard and returns a "
            "scalebench.Workload."
        )
    return function  # type: ignore[no-any-return]


def _checked(spec: CustomTarget, workload: object) -> Workload:
    """Return ``workload`` if it is one, and its parts are what they have to be."""
    if not isinstance(workload, Workload):
        raise UsageError(
            f"--workload {spec.name} returned {_a(workload)}, not a scalebench.Workload. {_RETURN}"
        )
    # What the annotations promise, the user's code need not keep.
    module: object = workload.module
    optimizer: object = workload.optimizer
    if not isinstance(module, torch.nn.Module):
        raise _wrong_part(spec, "module", module, "a torch.nn.Module, with its parameters")
    if not callable(workload.loss):
        raise _wrong_part(
            spec, "loss", workload.loss, "a function loss(module, batch) that returns the mean loss"
        )
    if optimizer is not None and not callable(optimizer):
        raise _wrong_part(
            spec, "optimizer", optimizer, "a function optimizer(parameters), or None for AdamW"
        )
    for part, given, valid in (
        ("blocks", workload.blocks, "a list of the model's repeated modules, or ()"),
        ("layers", workload.layers, "a list of modules that make up the model, in order, or ()"),
    ):
        if not _are_modules(given):
            raise _wrong_part(spec, part, given, valid)
    return workload


def _are_modules(given: object) -> bool:
    return isinstance(given, list | tuple | torch.nn.ModuleList | torch.nn.Sequential) and all(
        isinstance(one, torch.nn.Module) for one in given
    )


def _wrong_part(spec: CustomTarget, part: str, given: object, valid: str) -> UsageError:
    return UsageError(
        f"--workload {spec.name} returned a Workload whose {part} is {_a(given)}. It must be "
        f"{valid}."
    )


class _Batches:
    """The user's batches, of which the first has already been asked for.

    The first iteration goes on with the iterator that gave it, so that nothing is lost from a
    generator and no epoch of a data loader is spent on the check.

    Attributes:
        num_workers: Processes that make batches in advance, as a DataLoader calls them.
    """

    def __init__(self, batches: Any, first: Any, rest: Iterator[Any]) -> None:
        self.first = first
        self._batches = batches
        self.num_workers = getattr(batches, "num_workers", 0)
        self._begun: Iterator[Any] | None = chain([first], rest)

    def __iter__(self) -> Iterator[Any]:
        begun, self._begun = self._begun, None
        return iter(self._batches) if begun is None else begun


def _checked_batches(spec: CustomTarget, module: ModuleType, batches: object) -> _Batches:
    if not (hasattr(batches, "__iter__") or hasattr(batches, "__getitem__")):
        raise _wrong_part(
            spec, "batches", batches, "an iterable of batches, for example a DataLoader"
        )
    try:
        iterator = iter(batches)  # type: ignore[call-overload]
        first = next(iterator)
    except StopIteration as error:
        raise UsageError(
            f"--workload {spec.name} returned a Workload whose batches are empty. They must "
            "contain at least one batch of shard.batch_size samples for every rank."
        ) from error
    except _USER_ERRORS as error:
        if classify(error) == "oom":
            raise
        raise _failed(spec, module, "could not make its first batch:", error) from error
    return _Batches(batches, first, iterator)


def _failed(spec: CustomTarget, module: ModuleType, what: str, error: BaseException) -> UsageError:
    """Return the error for an exception out of the user's code, with the place it came from."""
    file = module.__file__ or spec.module
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    # No frame of the file: the call itself failed, for example a function without parameters.
    place = f"{file}:{lines[-1]}" if lines else file
    return UsageError(
        f"--workload {spec.name} {what} {_describe(error)} ({place}). The function is called with "
        "one scalebench.Shard; correct it there and run again."
    )


def _describe(error: BaseException) -> str:
    text = " ".join(str(error).split())  # one line, as every error of the command line
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _a(value: object) -> str:
    """Name a value by its type, as part of a sentence."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"
