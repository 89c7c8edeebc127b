"""Models of other libraries by name: ``--workload hf:config.json``, through transformers.

The model is made from its configuration alone: random weights, random tokens of its vocabulary, and
no dropout, so that gradients can be checked. Nothing is downloaded.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from scalebench.errors import UsageError
from scalebench.spec.presets import hf_configuration
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

    Args:
        name: ``hf:config.json``, as `scalebench.spec.presets.hf_configuration` reads it.
        shard: What this rank has to feed.

    Raises:
        UsageError: transformers is not installed, or makes no causal language model of it.
    """
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    try:
        from transformers import AutoConfig, AutoModelForCausalLM
    except ImportError as error:
        raise UsageError(
            f"--workload {name} needs transformers: pip install 'scalebench[transformers]'."
        ) from error
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


def _blocks(model: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the model's layers: its longest list of modules."""
    lists = [list(one) for one in model.modules() if isinstance(one, torch.nn.ModuleList)]
    return max(lists, key=len, default=[])
