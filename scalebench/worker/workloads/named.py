"""Workloads by name: the user's own ``module:function``, and models of other libraries.

The user's own workload: ``--workload module:function``.

All that can go wrong in code that scalebench did not write is told here as one `UsageError`, with
the place in the user's file. Running out of memory is not among it: that is a result of the run.

Models of other libraries by name: ``hf:config.json``, ``torchvision:resnet50``, ``timm:NAME``.

The model has random weights, random tokens or images, and no dropout, so that gradients can be
checked. Nothing is downloaded.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from importlib import import_module
from inspect import isfunction
from itertools import chain
from types import ModuleType
from typing import Any

import torch
from torch.nn import Module, ModuleList, Sequential
from torch.nn.functional import cross_entropy

from scalebench.errors import UsageError, unknown_name
from scalebench.spec.presets import NAMED, CustomTarget, hf_configuration, image_model
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import classify

_RETURN = "Return scalebench.Workload(module=..., batches=..., loss=...)."

# A module may end the interpreter while it is imported (a script without its `__main__` guard).
_USER_ERRORS = (Exception, SystemExit)
NUM_BATCHES = 64
"""Of an epoch."""


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


@dataclass(frozen=True)
class RandomTokens:
    """Batches of random tokens ``[samples, context]``: this rank's part of every global batch."""

    vocabulary: int
    context: int
    shard: Shard

    def __iter__(self) -> Iterator[torch.Tensor]:
        of = self.shard
        random = torch.Generator("cpu").manual_seed(of.seed)
        size, first = (of.world_size * of.batch_size, self.context), of.rank * of.batch_size
        for _ in range(NUM_BATCHES):
            with torch.device("cpu"):
                tokens = torch.randint(self.vocabulary, size, generator=random)
            yield tokens[first : first + of.batch_size].to(of.device)


def hf(name: str, shard: Shard) -> Workload:
    """Return the causal language model of a configuration of Hugging Face.

    ``name``: ``hf:config.json``, as `scalebench.spec.presets.hf_configuration` reads it.

    Raises:
        UsageError: transformers is not installed, or makes no causal language model of it.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except (ImportError, RuntimeError) as error:
        raise _missing(name, "transformers", error) from error
    path, asked = hf_configuration(name)
    try:
        config = AutoConfig.from_pretrained(str(path), local_files_only=True)
        for field, value in vars(config).items():
            if "drop" in field and isinstance(value, float):
                setattr(config, field, 0.0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except (ValueError, KeyError, OSError) as error:
        raise UsageError(
            f"--workload {name}: transformers makes no causal language model of it: "
            f"{' '.join(str(error).split())[:300]}"
        ) from error
    usual = 2048 if shard.device.type == "cuda" else 128
    context = asked or min(getattr(config, "max_position_embeddings", usual), usual)
    return Workload(
        module=model,
        batches=RandomTokens(config.vocab_size, context, shard),
        loss=_loss,
        tokens_per_sample=context,
        blocks=_blocks(model),
    )


def _loss(module: Any, tokens: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = module(input_ids=tokens, labels=tokens, use_cache=False).loss
    return loss


def torchvision(name: str, shard: Shard) -> Workload:
    """Return an image classifier of torchvision; raises UsageError where there is none."""
    given, pixels = image_model(name)
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        raise _missing(name, "torchvision", error) from error
    known = models.list_models(module=models)
    if given not in known:
        raise _no_model(name, given, known)
    aux = {"aux_logits": False, "init_weights": True} if given in WITH_SECOND_HEADS else {}
    return _classifier(models.get_model(given, weights=None, **aux), pixels or 224, 1000, shard)


WITH_SECOND_HEADS = ("googlenet", "inception_v3")


def timm(name: str, shard: Shard) -> Workload:
    """Return an image model of timm; raises UsageError where there is none."""
    given, pixels = image_model(name)
    try:
        from timm import create_model, is_model, list_models
    except (ImportError, RuntimeError) as error:
        raise _missing(name, "timm", error) from error
    if not is_model(given):
        raise _no_model(name, given, list_models())
    size = {"img_size": pixels} if pixels else {}
    try:
        model = create_model(given, pretrained=False, **size)
    except TypeError:  # convolutions take any size, and no argument for it
        model = create_model(given, pretrained=False)
    usual = model.pretrained_cfg.get("input_size", (3, 224, 224))[-1]
    return _classifier(model, pixels or usual, model.num_classes, shard)


def _missing(name: str, extra: str, error: Exception) -> UsageError:
    if isinstance(error, ModuleNotFoundError):
        what = f"needs {extra}: pip install 'scalebench[{extra}]'"
    else:  # of another build: for CUDA where torch is for the CPU
        what = f"{extra} does not fit this torch, install the one of its build: {error}"
    return UsageError(f"--workload {name}: {' '.join(what.split())[:300]}.")


def _no_model(name: str, given: str, known: Sequence[str]) -> UsageError:
    near = ", ".join(get_close_matches(given, known, n=5, cutoff=0.3)) or known[0]
    return UsageError(f"--workload {name}: no such model. Nearest of {len(known)}: {near}.")


def _classifier(model: Module, pixels: int, classes: int, shard: Shard) -> Workload:
    for module in model.modules():
        for rate in ("p", "drop_prob"):
            if isinstance(getattr(module, rate, None), float):  # of dropout and random depth
                setattr(module, rate, 0.0)
    return Workload(
        module=model,
        batches=_images(pixels, classes, shard),
        loss=lambda module, batch: cross_entropy(module(batch[0]), batch[1]),
        blocks=_blocks(model),
    )


IMAGE_BATCHES = 2
"""Made once: to draw pixels in every step would take as long as to train on them."""


def _images(pixels: int, classes: int, shard: Shard) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return this rank's images ``[samples, 3, pixels, pixels]`` and classes, of global batches."""
    random, size = torch.Generator("cpu"), shard.batch_size
    found = []
    for batch in range(IMAGE_BATCHES):
        first = (batch * shard.world_size + shard.rank) * size
        images, labels = [], []
        with torch.device("cpu"):
            for sample in range(first, first + size):
                random.manual_seed(shard.seed * 1_000_003 + sample)
                images.append(torch.rand((3, pixels, pixels), generator=random))
                labels.append(torch.randint(classes, (), generator=random))
            found.append((torch.stack(images), torch.stack(labels)))
    return [(images.to(shard.device), labels.to(shard.device)) for images, labels in found]


def _blocks(model: Module) -> list[Module]:
    """Return the model's repeated parts: lists of modules of one kind, each with parts itself."""
    found: list[Module] = []
    for child in model.children():
        parts = list(child) if isinstance(child, ModuleList | Sequential) else []
        alike = len({type(part) for part in parts}) == 1 and next(parts[0].children(), None)
        found += parts if alike and len(parts) > 1 else _blocks(child)
    return found
