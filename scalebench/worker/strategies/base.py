"""What every strategy offers to the loop that measures it."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import MappingProxyType
from typing import Any, TypeVar

import torch
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalebench.spec import Execution
from scalebench.spec.workload import Workload
from scalebench.trace.operations.communication_kernels import AXIS
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.execution import LossScaler, loss_scaler, precision

T = TypeVar("T")


class Training:
    """A model being trained by one strategy, as one rank sees it.

    Attributes:
        module: A `torch.nn.Module`, who owns this rank's parameters and gradients, wrapped as the
            strategy wraps them.
        optimizer: Who owns this rank's part of the optimizer's state.
        stepper: Whose ``zero_grad`` and ``step`` are called: what a method has put around the
            optimizer; None: the optimizer itself.
        facts: What predictions rest on, for the rank's record. ``group_elements``: sizes of the
            groups of parameters that are gathered together, the root last, padding included.
            ``layers``: what a pipeline's layers cost, see `costmodel.pipelines.layers.Layers`.
        groups: Ranks that operations of a kind go between, of kinds that always go between the
            same ones; gloo's traces do not say.
        axes: Dimension of the mesh → ranks of this rank's group along it. Operations inside
            `on_axis` go along that dimension, all others along the first one here. Dimensions of a
            single rank are left out, but for one along which there are operations. Empty: no mesh.
        keeps_buffers: Whether the wrapper may keep its own memory from step to step.
        keeps_built: Whether what building leaves stays for good, though no parameter or state
            owns it.
        settling_steps: Steps before the method does all that it does; they are warm-up.
        scaler: What scales the loss; None: it is not scaled.
        frees_gradients: Whether the update frees gradients: the step then calls ``before_update``.
    """

    strategy: Any
    module: Any
    optimizer: Any
    stepper: Any = None
    facts: Mapping[str, Any] = MappingProxyType({})
    groups: Mapping[str, list[int]] = MappingProxyType({})
    axes: dict[str, list[int]] = MappingProxyType({})  # type: ignore[assignment]
    keeps_buffers: bool = True
    keeps_built: bool = False
    settling_steps: int = 0
    scaler: LossScaler | None = None
    frees_gradients: bool = False
    before_update: Callable[[], Any] | None = None

    def __init__(self, strategy: Execution, workload: Workload, context: RankContext) -> None:
        self.strategy, self.device, self.loss = strategy, context.device, workload.loss
        self.scaler = loss_scaler(strategy, context.device)

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch: forward, backward, optimizer.

        Nothing in it waits for the device.

        Returns:
            The mean loss over the batch, detached, on the device; shape ().
        """
        stepper = self.stepper or self.optimizer
        stepper.zero_grad()
        loss = self.forward_backward(batch)
        self.complete_gradients()
        if self.scaler:
            self.scaler.step(stepper)
        else:
            stepper.step()
        return loss

    def step_done(self, batch: Any) -> torch.Tensor:
        """Train on a batch as `step` does, again with a smaller scale as long as it is skipped."""
        while True:
            scale = self.scaler.scale if self.scaler else 0.0
            loss = self.step(batch)
            if self.scaler is None or self.scaler.scale >= scale:
                return loss

    def forward_backward(self, batch: Any, parts: float = 1) -> torch.Tensor:
        """Add a batch's gradient, one of so many parts of the mean; return its part of the loss."""
        with precision(self.strategy, self.device):
            loss = self.loss(self.module, batch)
            if parts != 1:
                loss = loss / parts
        (self.scaler.scaled(loss) if self.scaler else loss).backward()
        return loss.detach()

    def complete_gradients(self) -> None:
        """Exchange what of the gradients the backward pass did not."""

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield name and full gradient of every parameter after a step, in the model's order.

        Every rank takes part: a sharded strategy has to gather. The gradient is that of the mean
        loss over the global batch.
        """
        wrapped = isinstance(self.module, DistributedDataParallel)
        return gathered_gradients(self.module.module if wrapped else self.module, self.device)

    @property
    def sent_bytes(self) -> float | None:
        """Bytes that a rank has sent since the start, ring-equivalent.

        None: the training does not count them; the trace of a step tells.
        """
        return None

    @property
    def num_samples(self) -> int | None:
        """Samples that all ranks have trained on since the start.

        0: another rank counts them. None: no one does, each step is a global batch.
        """
        return None

    @property
    def lost_ranks(self) -> dict[int, int]:
        """Rank → samples of all ranks when the training lost it, as far as this rank knows."""
        return {}

    def kept_shards(self) -> Iterable[torch.Tensor]:
        """Return this rank's parameters that neither its module nor its optimizer shows."""
        return ()

    def evaluated_model(self) -> AbstractContextManager[None]:
        """Have the module hold, in the block, the model that the method is judged by.

        Where the ranks have models of their own it is their mean, or a central one. Every rank
        takes part.
        """
        return nullcontext()

    def held_out_loss(self, batch: Any) -> torch.Tensor | None:
        """Return the mean loss over a batch, of shape (); None: another rank knows it.

        Every rank takes part: a sharded strategy has to gather.
        """
        loss: torch.Tensor = self.loss(self.module, batch)
        return loss

    def own_batches(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Return the batches to train on, which a method that divides the data has of its own."""
        return batches

    def finish_exchanges(self) -> None:
        """Wait for what the last step still exchanges, so that a clock sees it."""

    def finish(self) -> None:
        """End what runs during the training, such as a server; every rank takes part."""

    def share_losses(self, losses: torch.Tensor) -> torch.Tensor:
        """Return the losses of a block of steps, shape [steps], where only some ranks know them.

        The loss of a pipeline is on its last rank. Telling the others at every step would make the
        ranks wait for one another: all ranks do it at once when the steps are over.
        """
        if self.scaler:
            self.scaler.note()
        return losses

    def collective_groups(self) -> dict[str, int] | None:
        """Return name and size of the process group of the collectives; None: all ranks."""
        return None

    def marked_actions(self) -> AbstractContextManager[Any]:
        """Mark in the trace, in the block, what the training does."""
        return nullcontext()

    def without_synchronisation(self) -> AbstractContextManager[Any] | None:
        """Keep the steps in the block on their rank; None: the strategy cannot do without.

        DDP calls it ``no_sync``.
        """
        no_sync = getattr(self.module, "no_sync", None)
        return no_sync() if no_sync is not None else None


@contextmanager
def on_axis(axis: str) -> Iterator[None]:
    """Mark in the trace that what is asked for inside goes along a dimension of the mesh."""
    with record_function(AXIS + axis):
        yield


@contextmanager
def seen_before_update(training: Training, look: Callable[[], T]) -> Iterator[list[T]]:
    """Look at a training between backward and update, in the one step of the block.

    For trainings that free gradients in the update: they call ``before_update`` at that moment.

    Yields:
        What ``look`` returned. Empty: the gradients outlive the step, look when it is over.
    """
    seen: list[T] = []
    if not training.frees_gradients:
        yield seen
        return
    training.before_update = lambda: seen.append(look())
    try:
        yield seen
    finally:
        training.before_update = None


def named_gradients(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and gradient of a module's parameters; zeros for those that took no part."""
    for name, parameter in module.named_parameters():
        gradient = parameter.grad
        yield name, torch.zeros_like(parameter) if gradient is None else gradient


def gathered_gradients(
    module: torch.nn.Module, device: torch.device
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and full gradient of a module's parameters; every rank takes part."""
    for name, gradient in named_gradients(module):
        yield name, whole(gradient, device)


def whole(tensor: Any, device: torch.device | None = None) -> torch.Tensor:
    """Return the full tensor of a divided one; every rank takes part in gathering it.

    What is not divided is returned as it is. ``device``: whose group gathers it, where it is kept
    on another; None: it is there.
    """
    there: Any = tensor if device is None or not isinstance(tensor, DTensor) else tensor.to(device)
    full: torch.Tensor = there.full_tensor() if isinstance(there, DTensor) else there
    return full
