"""Models of other libraries by name: ``hf:config.json``, ``torchvision:resnet50``, ``timm:NAME``.

The model has random weights, random tokens or images, and no dropout, so that gradients can be
checked. Nothing is downloaded.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import torch
from torch.nn import Module, ModuleList, Sequential
from torch.nn.functional import cross_entropy

from scalebench.errors import UsageError
from scalebench.spec.presets import hf_configuration, image_model
from scalebench.spec.workload import Shard, Workload

NUM_BATCHES = 64
"""Of an epoch."""


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
