"""What every strategy offers to the loop that measures it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, TypeVar

import torch
from torch.profiler import record_function

from scalebench.trace.marks import AXIS

T = TypeVar("T")


class Training(Protocol):
    """A model being trained by one strategy, as one rank sees it.

    A training may also tell what `facts_of`, `groups_of`, `axes_of`, `keeps_buffers`,
    `keeps_built`, `kept_shards`, `judged`, `sent_bytes_of`, `num_samples_of`, `lost_ranks_of`,
    `batches_for`, `seen_before_update`, `settle` and `finish` ask for.
    """

    @property
    def module(self) -> torch.nn.Module:
        """Who owns this rank's parameters and gradients, wrapped as the strategy wraps them."""
        ...

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """Who owns this rank's part of the optimizer's state."""
        ...

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch: forward, backward, optimizer.

        Nothing in it waits for the device.

        Returns:
            The mean loss over the batch, detached, on the device; shape ().
        """
        ...

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and full gradient of every parameter after a step, in the model's order.

        Every rank takes part: a sharded strategy has to gather. The gradient is that of the mean
        loss over the global batch.
        """
        ...


def facts_of(training: Any) -> dict[str, Any]:
    """Return what a training knows that predictions rest on, for the rank's record.

    ``group_elements``: sizes of the groups of parameters that are gathered together, the root
    last, padding included. ``layers``: what a pipeline's layers cost, see
    `scalebench.costmodel.pipelines.layers.Layers`.
    """
    return dict(getattr(training, "facts", {}))


def groups_of(training: Any) -> Mapping[str, "list[int]"]:
    """Return which ranks a training's operations of a kind go between, as far as it tells.

    Only for kinds that always go between the same ranks; gloo's traces do not say.
    """
    told: Mapping[str, list[int]] = getattr(training, "groups", {})
    return told


def axes_of(training: Any) -> Mapping[str, "list[int]"]:
    """Return dimension of the training's mesh → ranks of this rank's group along it.

    Operations inside `on_axis` go along that dimension, all others along the first one here.
    Dimensions of a single rank are left out, but for one along which there are operations. Empty:
    the training has no mesh.
    """
    told: Mapping[str, list[int]] = getattr(training, "axes", {})
    return told


@contextmanager
def on_axis(axis: str) -> Iterator[None]:
    """Mark in the trace that what is asked for inside goes along a dimension of the mesh."""
    with record_function(AXIS + axis):
        yield


def keeps_buffers(training: Any) -> bool:
    """Return whether a training's wrapper may keep its own memory from step to step."""
    return bool(getattr(training, "keeps_buffers", True))


def keeps_built(training: Any) -> bool:
    """Return whether what building leaves stays for good, though no parameter or state owns it."""
    return bool(getattr(training, "keeps_built", False))


def kept_shards(training: Any) -> Iterable[torch.Tensor]:
    """Return this rank's parameters that neither its module nor its optimizer shows."""
    own = getattr(training, "kept_shards", None)
    return () if own is None else own()


def judged(training: Any) -> AbstractContextManager[None]:
    """Have a training's module hold, in the block, the model that its method is judged by.

    Where the ranks have models of their own it is their mean, or a central one. Every rank takes
    part.
    """
    own = getattr(training, "judged_model", None)
    return nullcontext() if own is None else own()


def batches_for(training: Any, batches: Iterator[Any]) -> Iterator[Any]:
    """Return the batches that a training is fed: its own, where its method divides the data.

    Args:
        training: Of this rank.
        batches: Those of the workload, endless.
    """
    own = getattr(training, "own_batches", None)
    return batches if own is None else own(batches)


def settle(training: Any) -> None:
    """Have a training wait for what its last step still exchanges, so that a clock sees it."""
    wait = getattr(training, "settle", None)
    if wait is not None:
        wait()


def finish(training: Any) -> None:
    """Have a training end what runs beside it, such as a server; every rank takes part."""
    end = getattr(training, "finish", None)
    if end is not None:
        end()


def sent_bytes_of(training: Any) -> float | None:
    """Return the bytes that a rank has sent since the start, ring-equivalent.

    None: the training does not count them; the trace of a step tells.
    """
    return getattr(training, "sent_bytes", None)


def num_samples_of(training: Any) -> int | None:
    """Return the samples that all ranks have trained on since the start.

    0: another rank counts them. None: nobody does, each step is a global batch.
    """
    return getattr(training, "num_samples", None)


def lost_ranks_of(training: Any) -> dict[int, int]:
    """Return rank → samples of all ranks when a training lost it, as far as this rank knows."""
    lost: dict[int, int] = getattr(training, "lost_ranks", {})
    return lost


@contextmanager
def seen_before_update(training: Any, look: Callable[[], T]) -> Iterator[list[T]]:
    """Look at a training between backward and update, in the one step of the block.

    For trainings that free gradients in the update: they have an attribute ``before_update``, which
    they call at that moment.

    Yields:
        What ``look`` returned. Empty: the gradients outlive the step, look when it is over.
    """
    seen: list[T] = []
    if not hasattr(training, "before_update"):
        yield seen
        return
    training.before_update = lambda: seen.append(look())
    try:
        yield seen
    finally:
        training.before_update = None


def on_every_rank(training: Training, losses: torch.Tensor) -> torch.Tensor:
    """Return the losses of a block of steps, shape [steps], where only some ranks know them.

    The loss of a pipeline is on its last rank. Telling the others at every step would make the
    ranks wait for one another; a strategy that has ``share_losses`` does it when the steps are
    over, on all ranks at once.
    """
    share = getattr(training, "share_losses", None)
    return losses if share is None else share(losses)


def named_gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and gradient of a module's parameters; zeros for those that took no part."""
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        yield name, torch.zeros_like(parameter) if gradient is None else gradient
