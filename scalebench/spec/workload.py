"""What a workload is: the public types with which users bring their own model and data.

A workload function takes a `Shard` and returns a `Workload`. It is called once in each rank,
with the same seed set everywhere, so every rank builds the same parameters.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Shard:
    """The part of the job that one rank has to feed.

    Attributes:
        rank: This rank, 0 ≤ rank < world_size.
        world_size: Ranks among which every global batch is divided.
        batch_size: Samples in each batch of this rank.
        seed: Seed of the run; the order of the data must depend on it alone.
        device: Where the batches are wanted; batches elsewhere are moved by the loop.
    """

    rank: int
    world_size: int
    batch_size: int
    seed: int
    device: "torch.device"


Split = Literal["columns", "rows", "vocabulary", "positions", "tokens", "last", "output"]
"""How a layer is divided over the ranks of a tensor group; see `TensorPlan`."""


@dataclass(frozen=True)
class TensorPlan:
    """Which layers of a module are divided over the ranks of a tensor group, and how.

    Source: Shoeybi et al. 2019 (Megatron-LM); Korthikanti et al. 2022 (division of the sequence).

    Attributes:
        modules: Name of a layer, ``*`` for any part between two dots → how it is divided:

            ``columns``: a linear layer, by its outputs; what follows works on its part of them.
            ``rows``: a linear layer, by its inputs, which are such a part; results are summed.
            ``vocabulary``: an embedding, by the rows of its table.
            ``positions``: an embedding of places, ``[tokens]`` → ``[tokens, width]``; divided with
            the sequence only.
            ``tokens``: works on each token by itself (a normalisation, dropout); with a divided
            sequence on the rank's part of the tokens.
            ``last``: the same, and its result is multiplied by a divided embedding to give the
            logits (tied weights).
            ``output``: the linear layer that gives the logits, by its outputs, the classes.

            A layer that is not named is the same on every rank.
        divisors: Word → number that the ranks of a group must divide: heads, width, vocabulary.
        divides_logits: Whether the module returns logits divided by classes.
        sequence: Tokens of a sample; None: dimension 1 of what passes between layers is no
            sequence, and there is none to divide.
    """

    modules: Mapping[str, Split]
    divisors: Mapping[str, int] = field(default_factory=dict)
    divides_logits: bool = False
    sequence: int | None = None


@dataclass(frozen=True)
class ContextPlan:
    """What of a module sees more than one token, for context parallel training.

    Every other layer works on each token by itself, and every tensor of a batch is ``[samples,
    tokens, ...]``; the loss is the mean over tokens.

    Attributes:
        attention: Names of the modules that do causal self-attention: each is called with queries,
            keys and values ``[samples, heads, tokens, head width]``, all of one shape, and returns
            the same shape. ``*`` stands for any part of a name between two dots.
        positions: Names of the modules that are called with places in the sequence, ``[tokens]``,
            counted from 0.
        heads: Of every attention.
        sequence: Tokens of a sample.
    """

    attention: Sequence[str]
    heads: int
    sequence: int
    positions: Sequence[str] = ()

    def own_heads(self, tensor_ranks: int) -> "ContextPlan":
        """Return the plan with the heads that a rank of a tensor group has."""
        return replace(self, heads=self.heads // tensor_ranks)


@dataclass(frozen=True)
class Divisible:
    """What a workload says of how it can be divided over ranks.

    Attributes:
        name: Of the workload.
        experts: Of each layer that has some.
        top_k: Experts that work on a token.
        layers: Stages that a pipeline of it can have at most; None: it does not say.
        own: It is one of the user's own, whose model decides how tokens are routed.
        known: False: only its ranks know the plans and experts.
    """

    name: str
    tensor_plan: TensorPlan | None = None
    context_plan: ContextPlan | None = None
    experts: Sequence[int] = ()
    top_k: int = 1
    layers: int | None = None
    own: bool = False
    known: bool = True


@dataclass(frozen=True)
class Workload:
    """A model, its data and its loss.

    Attributes:
        module: The model, with parameters on any device; moved to the rank's device.
        batches: Batches for this rank. When it ends it is iterated again (the next epoch).
        loss: ``loss(module, batch)`` → scalar tensor, the **mean** over the batch's samples.
            Call the module that is passed in: it is the wrapped one.
        optimizer: ``optimizer(parameters)`` → optimizer. None: fused AdamW, lr 1e-3. Hand on what
            is given: a strategy that divides the optimizer gives groups of parameters.
        tokens_per_sample: Tokens in one sample, for token throughput; None where it means
            nothing.
        blocks: The repeated parts of the module, in order: the units of activation
            checkpointing. Empty: the module has none, and strategies that need them say so.
        layers: The whole module as a sequence, for pipelines: each layer takes the tensor that
            the one before it returned, the first what ``loss`` calls the module with, and the
            last returns what the module would. Parameters are those of ``module``; layers may
            share one (tied weights). Empty: the module is no such sequence.
        evaluation: Batches of samples that are never trained on, the same on all ranks and in
            every iteration; a race is judged by the mean loss over them. The ranks divide the
            batches among them, and the noise of gradients is taken from them: shuffle the samples.
            None: the workload cannot take part in a race.
        tensor_plan: How its layers are divided for tensor parallel training. None: it is not known.
        context_plan: Its attention, for context parallel training. None: it is not known.
        experts: The experts of each mixture-of-experts layer, in order: a module whose parameters
            have the experts as their first dimension. It is called with tokens ``[n, width]`` in
            the order of their experts, ``counts``, a list of how many each expert has, and
            ``chosen``, a list of how many chose each expert, those that were dropped included; it
            returns ``[n, width]``. Empty: the model has none.
    """

    module: "torch.nn.Module"
    batches: Iterable[Any]
    loss: "Callable[[torch.nn.Module, Any], torch.Tensor]"
    optimizer: "Callable[[Iterable[torch.nn.Parameter]], torch.optim.Optimizer] | None" = None
    tokens_per_sample: int | None = None
    blocks: "Sequence[torch.nn.Module]" = ()
    layers: "Sequence[torch.nn.Module]" = ()
    evaluation: Iterable[Any] | None = None
    tensor_plan: TensorPlan | None = None
    context_plan: ContextPlan | None = None
    experts: "Sequence[torch.nn.Module]" = ()
