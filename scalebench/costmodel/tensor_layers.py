"""What the ranks of a tensor group send each other in a step: every operation, in order.

A layer divided by columns gives back the gradient of its input, summed over the ranks; one divided
by rows gives the sum of the ranks' results. So a pair of layers costs an all-reduce of the
activations in forward and one in backward, and a transformer block with its two pairs four of
b·s·h elements each (Shoeybi et al. 2019, §3). With a divided sequence each becomes a
reduce-scatter or an all-gather, and there are twice as many (Korthikanti et al. 2022, §4.2).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from scalebench.spec import Tensor
from scalebench.spec.presets import GptShape, MlpShape
from scalebench.spec.workload import Split

FP32_BYTES = 4
Shape = tuple[tuple[int, ...], int | None]
"""Of a parameter: its whole shape, and the dimension that a tensor group divides; None: none."""

LOSS_EXCHANGES = 3
"""For each token the largest logit, the sum of exponentials, and the target's logit."""


class NoLaw(Exception):
    """There is no formula for what a strategy sends; the text says why."""


class Operation(NamedTuple):
    """One operation of a step.

    Attributes:
        num_bytes: Full size, as nccl-tests counts it.
        phase: ``forward``, ``backward``, or ``gradients``: after the backward pass.
    """

    op: str
    num_bytes: int
    axis: str
    num_ranks: int
    phase: str


@dataclass(frozen=True)
class DividedLayer:
    """One call of a layer in a forward pass, as the rank's fact ``divided_layers`` has it.

    Attributes:
        split: How it is divided; see `scalebench.spec.workload.TensorPlan`.
        inputs: Width of its input; rows of the table where it is an embedding; 0: it has no matrix.
        outputs: Width of its output, likewise.
        parameters: Elements of each of its parameters.
        vectors: Input vectors, or indices, of the whole sequence.
        width: Elements of an input vector on the rank; 0: indices.
        input_gradient: Whether the gradient of the input is asked for.
    """

    name: str
    split: Split
    inputs: int
    outputs: int
    parameters: tuple[int, ...]
    vectors: int
    width: int
    input_gradient: bool


@dataclass(frozen=True)
class DividedModel:
    """A model as a tensor plan divides it: what the first step of a rank has shown.

    Attributes:
        layers: In the order of their calls.
        samples: Of the batch on which that was.
        divides_logits: Whether the module's result is divided by classes.
        parameters: Of every parameter of the module: its elements, and whether it is divided.
        gathered: Where parts of layers are sharded once more, the parameters that are gathered
            together, each as its shape and the dimension that is divided; the last are those of no
            block.
    """

    layers: tuple[DividedLayer, ...]
    samples: int
    divides_logits: bool
    parameters: tuple[tuple[int, bool], ...]
    gathered: tuple[tuple["Shape", ...], ...] = ()

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "DividedModel":
        """Return the model of a rank's facts.

        Raises:
            NoLaw: They do not tell.
        """
        told = facts.get("divided_layers")
        if told is None:
            raise NoLaw("no step has shown what the divided layers are called with")
        names = [field.name for field in fields(DividedLayer)]
        layers = tuple(DividedLayer(**{name: _frozen(one[name]) for name in names}) for one in told)
        parameters = tuple((int(size), bool(divided)) for size, divided in facts["parameters"])
        gathered = tuple(
            tuple((tuple(shape), divided) for shape, divided in group)
            for group in facts.get("gathered", ())
        )
        return cls(layers, facts["divided_samples"], facts["divided_logits"], parameters, gathered)

    def local_elements(self, ranks: int) -> int:
        """Return the parameters of a rank, elements."""
        return sum(size // ranks if divided else size for size, divided in self.parameters)


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def why_no_law(strategy: Tensor) -> str | None:
    """Say why there is no formula for what a strategy sends; None: there is one."""
    if strategy.computes_in_bfloat16:
        return "under autocast some tensors are sent in bfloat16 and some in float32"
    if strategy.checkpointing:
        return "what recomputation sends again depends on where torch stops it"
    return None


def operations_of_step(
    strategy: Tensor, model: DividedModel, world_size: int, rank_batch: int
) -> list[Operation]:
    """Return what a rank takes part in during a step, float32, in order.

    Args:
        strategy: How the layers are divided.
        model: What is divided.
        world_size: N.
        rank_batch: Samples of a group's step.

    Raises:
        NoLaw: There is no formula; the text says why.
    """
    reason = why_no_law(strategy)
    if reason is not None:
        raise NoLaw(reason)
    ranks = strategy.ranks_per_group(world_size)
    groups = world_size // ranks
    found, partial = operations_along_tensor(strategy, model, ranks, rank_batch)
    if sum(partial) and ranks > 1:
        size = FP32_BYTES * sum(partial)
        found.append(Operation("all_reduce", size, "tensor", ranks, "gradients"))
    if groups > 1:
        size = FP32_BYTES * model.local_elements(ranks)
        found.append(Operation("all_reduce", size, "data", groups, "gradients"))
    return found


def operations_along_tensor(
    strategy: Tensor, model: DividedModel, ranks: int, rank_batch: int
) -> tuple[list[Operation], list[int]]:
    """Return what forward and backward send along the tensor dimension.

    Args:
        strategy: How the layers are divided.
        model: What is divided.
        ranks: Of a tensor group.
        rank_batch: Samples of its step.

    Returns:
        The operations; and the elements of each parameter of whose gradient every rank then has a
        summand.
    """
    step = _Step(strategy, rank_batch / model.samples, ranks)
    found = [op for layer in model.layers for op in step.forward(layer)]
    found += step.of_logits(model)
    found += [op for layer in reversed(model.layers) for op in step.backward(layer)]
    partial = [size for layer in _once(model.layers) for size in step.partial_elements(layer)]
    return [op for op in found if op.num_ranks > 1], partial


def _once(layers: Sequence[DividedLayer]) -> list[DividedLayer]:
    return list({layer.name: layer for layer in layers}.values())


@dataclass(frozen=True)
class _Step:
    """A step of one tensor group.

    Attributes:
        scale: Its samples over those with which the layers were watched.
        ranks: Of the group.
    """

    strategy: Tensor
    scale: float
    ranks: int

    def operation(self, op: str, elements: float, phase: str) -> Operation:
        return Operation(op, FP32_BYTES * round(elements), "tensor", self.ranks, phase)

    @property
    def _summing(self) -> str:
        return "reduce_scatter" if self.strategy.sequence else "all_reduce"

    def _vectors(self, layer: DividedLayer) -> float:
        return layer.vectors if layer.split == "positions" else self.scale * layer.vectors

    def forward(self, layer: DividedLayer) -> Iterator[Operation]:
        """Yield what a layer sends in forward."""
        sequence = self.strategy.sequence
        if layer.split in ("rows", "vocabulary") or (layer.split == "positions" and sequence):
            elements = self._vectors(layer) * layer.outputs
            yield self.operation(self._summing, elements, "forward")
        if layer.split in ("columns", "last", "output") and sequence:
            yield self.operation("all_gather", self._vectors(layer) * layer.width, "forward")

    def backward(self, layer: DividedLayer) -> Iterator[Operation]:
        """Yield what a layer sends in backward: for each all-gather a reduce-scatter, and back."""
        sequence = self.strategy.sequence
        if layer.split in ("columns", "last", "output") and layer.input_gradient:
            elements = self._vectors(layer) * layer.width
            yield self.operation(self._summing, elements, "backward")
        if layer.split in ("rows", "vocabulary", "positions") and sequence:
            yield self.operation("all_gather", self._vectors(layer) * layer.outputs, "backward")

    def of_logits(self, model: DividedModel) -> list[Operation]:
        """Return what the divided logits cost: gathered, or three numbers a token for the loss."""
        if not model.divides_logits:
            return []
        calls = [one for one in model.layers if one.split in ("last", "output")]
        if not calls:
            return []  # they are on other ranks of a pipeline
        last, vectors = calls[-1], self._vectors(calls[-1])
        if self.strategy.loss:
            exchange = self.operation("all_reduce", vectors, "forward")
            return [exchange] * (LOSS_EXCHANGES * len(calls))
        classes = last.outputs or next(
            one.inputs for one in model.layers if one.split == "vocabulary"
        )
        return [self.operation("all_gather", vectors * classes, "forward")] * len(calls)

    def partial_elements(self, layer: DividedLayer) -> tuple[int, ...]:
        """Return the parameters of a layer whose gradients are summed over parts of the tokens."""
        by_token = self.strategy.sequence and layer.split in ("tokens", "last")
        return layer.parameters if by_token else ()


def model_of_preset(
    shape: GptShape | MlpShape, samples: int, sequence: bool = False
) -> DividedModel:
    """Return a built-in model as its own plan divides it, before anything was run.

    A test compares it with what a step shows.

    Args:
        shape: Of the model.
        samples: Of a step.
        sequence: Whether the sequence is divided, and with it the embedding of places.
    """
    if isinstance(shape, GptShape):
        return _gpt(shape, samples, sequence)
    return _mlp(shape, samples)


def _gpt(shape: GptShape, samples: int, sequence: bool) -> DividedModel:
    width, tokens = shape.width, samples * shape.context
    norm = (width, width)

    def linear(name: str, split: Split, inputs: int, outputs: int) -> DividedLayer:
        own = (inputs * outputs, outputs)
        return DividedLayer(name, split, inputs, outputs, own, tokens, inputs, True)

    def by_token(name: str, split: Split = "tokens") -> DividedLayer:
        return DividedLayer(name, split, 0, 0, norm, tokens, width, True)

    def table(name: str, split: Split, rows: int, indices: int) -> DividedLayer:
        return DividedLayer(name, split, rows, width, (rows * width,), indices, 0, False)

    layers = [
        table("tokens", "vocabulary", shape.vocabulary, tokens),
        table("positions", "positions", shape.context, shape.context),
    ]
    for number in range(shape.layers):
        block = f"blocks.{number}"
        layers += [
            by_token(f"{block}.attention_norm"),
            linear(f"{block}.attention.qkv", "columns", width, 3 * width),
            linear(f"{block}.attention.output", "rows", width, width),
            by_token(f"{block}.mlp_norm"),
            linear(f"{block}.mlp.expand", "columns", width, 4 * width),
            linear(f"{block}.mlp.output", "rows", 4 * width, width),
        ]
    layers.append(by_token("norm", "last"))
    return DividedModel(tuple(layers), samples, True, _parameters(layers, sequence))


def _mlp(shape: MlpShape, samples: int) -> DividedModel:
    sizes = [shape.features, *[shape.width] * shape.layers, shape.classes]
    names = [f"blocks.{number}.0" for number in range(shape.layers)] + ["classify"]
    split_of = shape.tensor_plan.modules
    layers, rest = [], []
    for place, name in enumerate(names):
        inputs, outputs = sizes[place], sizes[place + 1]
        own = (inputs * outputs, outputs)
        if name in split_of:
            layers.append(
                DividedLayer(name, split_of[name], inputs, outputs, own, samples, inputs, place > 0)
            )
        else:
            rest += [(size, False) for size in own]
    return DividedModel(tuple(layers), samples, False, (*_parameters(layers), *rest))


def _parameters(
    layers: Sequence[DividedLayer], sequence: bool = False
) -> tuple[tuple[int, bool], ...]:
    """Return the parameters of layers; a layer by rows keeps its bias whole."""
    found = []
    for layer in layers:
        for place, size in enumerate(layer.parameters):
            whole = layer.split in ("tokens", "last") or (
                layer.split == "positions" and not sequence
            )
            found.append((size, not whole and not (layer.split == "rows" and place == 1)))
    return tuple(found)
