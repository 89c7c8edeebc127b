"""Expert parallel training: the experts of a mixture divided over the ranks, tokens sent to them.

In a layer a rank sends each token to the ranks of the token's experts (dispatch), and gets the
results back (combine): two all-to-alls with uneven splits, and two more in the backward pass
(Lepikhin et al. 2020). A small one before them tells how many tokens will come.

All that is no expert is replicated, and DDP averages its gradients over all ranks. An expert's
gradient is complete on the rank that has it, but for the copies of the expert in other groups. It
is a sum over the losses of the ranks, and the loss of the global batch is their mean.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import record_function

from scalebench.spec import Expert
from scalebench.spec.workload import Workload
from scalebench.trace.operations.communication_kernels import EXPERTS
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.base import Training, named_gradients, on_axis
from scalebench.worker.strategies.data_parallel import replicated
from scalebench.worker.strategies.execution import make_optimizer, prepare_module
from scalebench.worker.strategies.mesh.layers import sum_together
from scalebench.worker.workloads.batches import num_samples

MOST_STEPS = 128
"""Steps that are kept; of more, every second, every fourth, and so on."""

OfLayer = tuple[list[int], list[int], list[int]]
"""Tokens of this rank by expert, how many chose it, and tokens of the experts here."""


class LoadHistory:
    """Notes what the layers of each step tell; thins out what it has when it becomes too much."""

    def __init__(self, num_layers: int, num_ranks: int) -> None:
        self.num_layers, self.num_ranks = num_layers, num_ranks
        self.row_bytes = self.samples = 0
        self.stride = 1
        self.num_steps = 0
        self.steps: list[int] = []
        self.kept: list[list[OfLayer]] = []
        self.last: dict[int, OfLayer] = {}

    def note(
        self, layer: int, counts: Sequence[int], chosen: Sequence[int], here: Sequence[int]
    ) -> None:
        """Note a layer of the step; a layer that is computed again tells the same again."""
        self.last[layer] = list(counts), list(chosen), list(here)

    def end_step(self, samples: int) -> None:
        """Close a step on so many samples."""
        self.samples = self.samples or samples  # those of the first step: of the whole batch
        step, self.num_steps = self.num_steps, self.num_steps + 1
        if step % self.stride or len(self.last) < self.num_layers:
            return
        self.steps.append(step)
        self.kept.append([self.last[layer] for layer in range(self.num_layers)])
        if len(self.steps) > MOST_STEPS:
            self.stride *= 2
            self.steps, self.kept = self.steps[::2], self.kept[::2]

    def facts(self) -> dict[str, Any]:
        """Return the steps, and step → layer → expert of what was noted."""
        names = ("kept", "chosen", "here")
        told: dict[str, Any] = {
            "steps": list(self.steps),
            "ranks": self.num_ranks,
            "row_bytes": self.row_bytes,
            "samples": self.samples,
        }
        return told | {
            name: [[layer[which] for layer in step] for step in self.kept]
            for which, name in enumerate(names)
        }


class ExpertTraining(Training):
    """The model in DDP, but for the experts, which are divided."""

    def __init__(self, strategy: Expert, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.mesh = device_mesh(strategy, context)
        self.world_size = context.cell.world_size
        check(strategy, workload, self.mesh["expert"].size())
        self.load = LoadHistory(len(workload.experts), self.mesh["expert"].size())
        for layer, experts in enumerate(workload.experts):
            keep_own_experts(experts, self.mesh["expert"])
            experts.forward = partial(
                dispatched, experts.forward, self.mesh["expert"], self.load, layer
            )
        module = prepare_module(workload, strategy, context.device)
        self.experts = {
            name: parameter
            for name, parameter in module.named_parameters()
            if any(parameter is one for experts in workload.experts for one in experts.parameters())
        }
        self.num_parameters = sum(p.numel() for p in module.parameters())
        DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, [*self.experts])
        self.module = replicated(module, context.device)
        self.axes = axes_of_mesh(self.mesh)
        self.optimizer = make_optimizer(workload, self.module.parameters())

    def step(self, batch: Any) -> torch.Tensor:
        """Train on this rank's batch; tokens travel in forward and backward."""
        loss = super().step(batch)
        self.load.end_step(num_samples(batch))
        return loss

    def complete_gradients(self) -> None:
        """Sum the experts' gradients over their copies; take the mean over all ranks' losses."""
        gradients = [p.grad for p in self.experts.values() if p.grad is not None]
        replicas = self.mesh["replicas"]
        if replicas.size() > 1:
            with on_axis("replicas"):
                sum_together(gradients, replicas.get_group())
        for gradient in gradients:
            gradient /= self.world_size

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """The load of the experts, and what a rank keeps of the model."""
        own = sum(parameter.numel() for parameter in self.experts.values())
        return {
            "expert_load": self.load.facts(),
            "replicated_elements": self.num_parameters - own,
            "expert_elements": own,
        }

    def gradients(self) -> Iterator[tuple[str, torch.Tensor]]:
        """Gather the gradients of the experts, one parameter after the other, on every rank."""
        mesh = self.mesh["expert"]
        for name, gradient in named_gradients(self.module.module):
            if name in self.experts and mesh.size() > 1:
                parts = [torch.empty_like(gradient) for _ in range(mesh.size())]
                dist.all_gather(parts, gradient.contiguous(), group=mesh.get_group())
                gradient = torch.cat(parts)
            yield name, gradient


def dispatched(
    compute: Any,
    mesh: DeviceMesh,
    load: LoadHistory,
    layer: int,
    tokens: torch.Tensor,
    counts: Sequence[int],
    chosen: Sequence[int],
) -> torch.Tensor:
    """Have a layer's experts, which are divided, work on tokens of this rank.

    Args:
        compute: What maps tokens in the order of their experts, for the experts that are here.
        mesh: Its ranks have the experts in order.
        load: Notes ``counts``, ``chosen``, and how many tokens each expert here has.
        layer: Number of the layer, for that.
        tokens: ``[n, width]``, in the order of their experts.
        counts: How many each expert has of them.
        chosen: How many chose each expert, those that were dropped included.

    Returns:
        The results, in the order of the tokens.
    """
    ranks, here = mesh.size(), len(counts) // mesh.size()
    if torch.is_autocast_enabled(tokens.device.type):
        tokens = tokens.to(torch.get_autocast_dtype(tokens.device.type))  # as the experts would
    load.row_bytes = tokens.element_size() * tokens.shape[1]
    if ranks == 1:
        load.note(layer, counts, chosen, counts)
        return computed(compute, tokens, counts, chosen)
    from_each = exchange_counts(counts, mesh, tokens.device)  # [rank][expert here]
    sent = [sum(counts[rank * here : (rank + 1) * here]) for rank in range(ranks)]
    received = [sum(of_rank) for of_rank in from_each]
    arrived = exchanged(tokens, sent, received, mesh.get_group())
    of_expert = [sum(of_rank[expert] for of_rank in from_each) for expert in range(here)]
    load.note(layer, counts, chosen, of_expert)
    results = computed(compute, by_expert(arrived, from_each), of_expert, chosen)
    return exchanged(by_rank(results, from_each), received, sent, mesh.get_group())


def computed(
    compute: Any, tokens: torch.Tensor, counts: Sequence[int], chosen: Sequence[int]
) -> torch.Tensor:
    """Have the experts that are here compute, under a mark in the trace."""
    with record_function(EXPERTS):
        results: torch.Tensor = compute(tokens, counts, chosen)
    return results


def exchange_counts(
    counts: Sequence[int], mesh: DeviceMesh, device: torch.device
) -> list[list[int]]:
    """Return how many tokens each rank sends to each expert that is here, by rank and expert."""
    mine = torch.tensor(counts, device=device).view(mesh.size(), -1)
    # Where torch's fake process group answers, every rank sends as many as this one.
    theirs = mine[mesh.get_local_rank()].repeat(mesh.size(), 1)
    with on_axis("expert"):
        dist.all_to_all_single(theirs, mine, group=mesh.get_group())
    told: list[list[int]] = theirs.tolist()
    return told


class Exchange(torch.autograd.Function):
    """An all-to-all of rows with uneven splits; its backward pass sends the gradients back."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        sent: Sequence[int],
        received: Sequence[int],
        group: dist.ProcessGroup,
    ) -> torch.Tensor:
        """Send each rank its rows, ``[sum(sent), width]``; return ``[sum(received), width]``."""
        ctx.way_back = received, sent, group
        return send_rows(rows, sent, received, group)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        """Send each rank the gradients of the rows that came from it."""
        return send_rows(gradients[0], *ctx.way_back), None, None, None


def exchanged(
    rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Exchange rows, and their gradients in the backward pass; see `Exchange`."""
    arrived: torch.Tensor = Exchange.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return arrived


def send_rows(
    rows: torch.Tensor, sent: Sequence[int], received: Sequence[int], group: dist.ProcessGroup
) -> torch.Tensor:
    """Exchange rows among the ranks of a group."""
    arrived = rows.new_zeros(sum(received), *rows.shape[1:])
    with on_axis("expert"):
        dist.all_to_all_single(arrived, rows.contiguous(), list(received), list(sent), group=group)
    return arrived


def by_expert(rows: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return rows in the order of the experts.

    ``rows``: in the order of the ranks, those of a rank in that of the experts, ``[sum of counts,
    width]``. ``counts``: rank → expert → rows.
    """
    experts = len(counts[0])
    if experts == 1 or len(counts) == 1:
        return rows
    parts = rows.split([number for of_rank in counts for number in of_rank])
    return torch.cat([part for expert in range(experts) for part in parts[expert::experts]])


def by_rank(rows: torch.Tensor, counts: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return rows that `by_expert` put in order as they were before."""
    return by_expert(rows, list(zip(*counts, strict=True)))


def device_mesh(strategy: Expert, context: RankContext) -> DeviceMesh:
    """Return the ranks in rows: each row is a group that divides the experts, neighbours in it."""
    world_size = context.cell.world_size
    size = strategy.ranks_per_group(world_size)
    shape = (world_size // size, size)
    return init_device_mesh(context.device.type, shape, mesh_dim_names=("replicas", "expert"))


def axes_of_mesh(mesh: DeviceMesh) -> dict[str, list[int]]:
    """Return dimension → ranks of this rank's group along it.

    ``data`` comes first: DDP's all-reduces go over all ranks.
    """
    axes = {"data": list(range(mesh.size()))}
    for name in ("expert", "replicas"):
        ranks = dist.get_process_group_ranks(mesh.get_group(name))
        if len(ranks) > 1:
            axes[name] = ranks
    return axes


def keep_own_experts(experts: torch.nn.Module, mesh: DeviceMesh) -> None:
    """Keep of every parameter the part whose experts are this rank's.

    Every rank has the same parameters: nothing is sent.
    """
    if mesh.size() == 1:
        return
    for parameter in experts.parameters():
        parts = parameter.data.chunk(mesh.size())
        parameter.data = parts[mesh.get_local_rank()].clone()


def check(strategy: Expert, workload: Workload, ranks: int) -> None:
    """See that the experts can be divided; raises Unsupported."""
    if not workload.experts:
        raise Unsupported("expert parallel training needs a workload that names its experts")
    for experts in workload.experts:
        for name, parameter in experts.named_parameters():
            reason = strategy.why_not_experts(len(parameter), 1, ranks)
            if reason is not None:
                raise Unsupported(f"{name}: {reason}")
