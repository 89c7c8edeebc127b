"""PipeDream: a pipeline that is never flushed, whose stages keep old weights for their gradients.

Stage s of S, from 0, is S − 1 − s = d slots ahead of its gradients: in slot k it does the forward
pass of microbatch k, then the backward pass of microbatch k − d, which is one forward, one backward
without an end. A batch goes backwards with the weights with which it went forwards (weight
stashing), so its gradient is one of a single model on each stage, though it is old when the stage
steps by it.

    PipeDream       a batch is one microbatch. A stage steps after each, and forward passes take its
                    newest weights: d steps old, in d + 1 versions (Narayanan et al. 2019, §3.3).
    PipeDream-2BW   a stage steps by the sum over a batch's microbatches. Batch t passes all stages
                    with the weights after t − 1 batches: one step old, in two versions (Narayanan
                    et al. 2021, §3.1).

With one stage both are plain training. The batches that are under way at an evaluation stay so: the
model that is judged has the newest weights of each stage.

A parameter that stages share (tied weights) has a gradient on each of them. A stage starts to sum
it when it has its part; all step by the sum when the first of the stages has its part, the last. So
the copies stay equal, and no stage waits for one that is behind.
"""

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.func import functional_call

from scalebench.spec import PipeDream, PipeDream2BW
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.execution import make_optimizer
from scalebench.worker.strategies.mesh.pipeline import InStages
from scalebench.worker.strategies.pipelining import inputs_of, receive, send
from scalebench.worker.workloads.batches import split


@dataclass(eq=False)
class Version:
    """Weights of the stage, and the gradients at them.

    Attributes:
        number: Steps that were made before.
        tensors: Name in the stage → leaf, which shares no memory with other versions.
    """

    number: int
    tensors: dict[str, torch.Tensor]


@dataclass(eq=False)
class UnderWay:
    """A microbatch between its forward and its backward pass; ``sent``: its output, on the way."""

    version: Version
    given: torch.Tensor | None
    output: torch.Tensor
    sent: Any = None


@dataclass
class Sum:
    """The gradient of a shared parameter, being summed; all its stages step by it in one slot."""

    slot: int
    parameter: torch.nn.Parameter
    gradient: torch.Tensor
    work: Any


class PipeDreamTraining(InStages):
    """This rank's stage, its versions of the weights, and the microbatches under way.

    Attributes:
        ahead: d, slots from a microbatch's forward to its backward pass.
        versions: Of the weights, in order; the last one is what the optimizer steps.
        stash_bytes: The most that the other versions took.
        staleness: Steps between the weights of a gradient and the step by it → gradients.
    """

    def __init__(self, strategy: PipeDream, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.make_schedule(strategy.as_pipeline(), workload, context)
        (self.index,) = self.layout.own
        self.stage = self.own.modules[self.index]
        self.module = torch.nn.ModuleList([self.stage])
        self.optimizer = make_optimizer(workload, self.module.parameters())
        self.parameters = dict(self.stage.named_parameters())
        self.ahead = self.layout.num_stages - 1 - self.index
        self.before, self.after = (self.layout.neighbour(self.index, way) for way in (-1, 1))
        self.shared = self._shared()
        self.sums: list[Sum] = []
        self.under_way: deque[UnderWay] = deque()
        self.like: torch.Tensor | None = None
        self.told = False
        self.gradient: tuple[torch.Tensor, Any] | None = None
        self.sent_back: Any = None
        self.num_slots = self.num_updates = self.pushed_bytes = self.stash_bytes = 0
        self.exchange_s, self.staleness = 0.0, Counter[int]()
        self.versions, self.most_versions = [self._newest()], 1

    def step(self, batch: Any) -> torch.Tensor:
        """Pass a batch forwards, and as many microbatches backwards; the last stage has its loss.

        Of the batch's own microbatches the last ``ahead`` ones go backwards in the next steps.
        """
        losses = [self._slot(part) for part in split(batch, self.strategy.microbatches)]
        return torch.stack(losses).sum()

    def _slot(self, part: Any) -> torch.Tensor:
        """Do a forward pass, a backward pass, and what steps are due; return the loss."""
        slot = self.num_slots
        self.num_slots += 1
        loss = self._forward(part, slot // self.strategy.microbatches)
        if slot >= self.ahead:
            used = self._backward()
            if (slot + 1 - self.ahead) % self.strategy.microbatches == 0:
                self._update(used)
        for due in [one for one in self.sums if one.slot <= slot]:
            self._step_by(due)
        if self.after is not None and slot + 1 >= self.ahead:  # the next stage sends one back
            buffer = torch.empty_like(self.under_way[0].output)
            self.gradient = buffer, dist.irecv(buffer, self.after)
        return loss

    def _forward(self, part: Any, batch: int) -> torch.Tensor:
        given = inputs_of(self.loss, part) if self.before is None else (self._received(),)
        version = next(v for v in self.versions if v.number >= self._first_version(batch))
        output = functional_call(self.stage, version.tensors, given)
        one = UnderWay(version, None if self.before is None else given[0], output)
        self.under_way.append(one)
        if self.after is None:
            self.microbatches = (part,)
            one.output = self.loss_of_microbatch(output, self.numbers[0])
            return one.output.detach()
        if self.told:
            one.sent = self._sent(output.detach(), self.after)
        else:
            send(output.detach(), self.after)
            self.pushed_bytes += output.nbytes
        self.told = True
        return torch.zeros((), device=self.device)

    def _first_version(self, batch: int) -> int:
        """Return the number of the version with which a batch passes, if no step comes before."""
        if not isinstance(self.strategy, PipeDream2BW):
            return self.num_updates
        return max(batch - self.strategy.staleness(self.index, self.layout.num_stages), 0)

    def _backward(self) -> Version:
        """Do the oldest microbatch's backward pass; return the version that has its gradients."""
        one = self.under_way.popleft()
        if self.gradient is None:
            one.output.backward()
        else:
            self._wait(self.gradient[1], one.sent)
            one.output.backward(self.gradient[0])
        if self.before is not None:
            assert one.given is not None and one.given.grad is not None
            self._wait(self.sent_back)
            self.sent_back = self._sent(one.given.grad, self.before)
        return one.version

    def _update(self, used: Version) -> None:
        """Step by the gradients at a version; keep the newest one if it is needed any longer."""
        self.optimizer.zero_grad()
        for name, parameter in self.parameters.items():
            parameter.grad, used.tensors[name].grad = used.tensors[name].grad, None
        self.staleness[self.num_updates - used.number] += 1
        self.num_updates += 1
        first = self._first_version(self.num_slots // self.strategy.microbatches)
        newest, in_use = self.versions[-1], [one.version for one in self.under_way]
        self.versions = [v for v in self.versions if v.number >= first or v in in_use]
        if used not in self.versions:
            used.tensors.clear()
        self._start_sums()
        for parameter in self.parameters.values() if newest in self.versions else ():
            parameter.data = parameter.data.clone()
        self.optimizer.step()
        self.versions.append(self._newest())
        self.most_versions = max(self.most_versions, len(self.versions))
        own = {tensor.data_ptr(): tensor.nbytes for tensor in self.kept_shards()}
        newest_bytes = sum(tensor.nbytes for tensor in self.versions[-1].tensors.values())
        self.stash_bytes = max(self.stash_bytes, sum(own.values()) - newest_bytes)

    def _newest(self) -> Version:
        """Return the parameters as they are, as a version; the memory is theirs."""
        tensors = {
            name: parameter.data.requires_grad_(parameter.requires_grad)
            for name, parameter in self.parameters.items()
        }
        return Version(self.num_updates, tensors)

    def _shared(self) -> list[tuple[torch.nn.Parameter, list[int], Any]]:
        """Return this stage's shared parameters: each, ``ahead`` of all its stages, their group.

        The groups are no others': a sum is under way while other operations come and go.
        """
        found = []
        for placed in self.own.parameters.values():
            if len(placed.stages) > 1:
                ranks = [self.layout.rank_of[stage] for stage in placed.stages]
                group: Any = dist.new_group(ranks, timeout=self.layout.timeout)
                if placed.name in self.own.own:
                    ahead = [self.layout.num_stages - 1 - stage for stage in placed.stages]
                    found.append((self.own.own[placed.name], ahead, group))
        return found

    def _start_sums(self) -> None:
        for parameter, ahead, group in self.shared:
            gradient, parameter.grad = parameter.grad, None
            assert gradient is not None
            slot = self.num_updates * self.strategy.microbatches - 1 + max(ahead)
            work = dist.all_reduce(gradient, group=group, async_op=True)
            size = dist.get_world_size(group)
            self.pushed_bytes += round(2 * (size - 1) / size * gradient.nbytes)
            self.sums.append(Sum(slot, parameter, gradient, work))

    def _step_by(self, due: Sum) -> None:
        """Step by a sum. No microbatch is under way with the newest weights at that moment."""
        self.sums.remove(due)
        self._wait(due.work)
        self.optimizer.zero_grad()
        due.parameter.grad = due.gradient
        self.optimizer.step()

    def _received(self) -> torch.Tensor:
        """Return a microbatch from the stage before."""
        assert self.before is not None
        if self.like is None:
            given = self.like = receive(self.before, self.device)
        else:
            given = torch.empty_like(self.like)
            self._wait(dist.irecv(given, self.before))
        return given.requires_grad_(given.is_floating_point())

    def _sent(self, tensor: torch.Tensor, rank: int) -> Any:
        self.pushed_bytes += tensor.nbytes
        return dist.isend(tensor.contiguous(), rank)

    def _wait(self, *works: Any) -> None:
        began = time.perf_counter()
        for work in works:
            if work is not None:
                work.wait()
        self.exchange_s += time.perf_counter() - began

    def finish_exchanges(self) -> None:
        """Wait for what the last slot sent."""
        self._wait(*(one.sent for one in self.under_way), self.sent_back)
        for one in self.under_way:
            one.sent = None
        self.sent_back = None
        if self.gradient is not None and self.gradient[1] is not None:
            self._wait(self.gradient[1])
            self.gradient = self.gradient[0], None

    def finish(self) -> None:
        """Take part in the sums that other stages have started."""
        self.finish_exchanges()
        for parameter, ahead, group in self.shared:
            started = (self.num_slots - min(ahead)) // self.strategy.microbatches
            for _ in range(started - self.num_updates):
                dist.all_reduce(torch.zeros_like(parameter), group=group)
        self._wait(*(one.work for one in self.sums))
        self.sums.clear()

    def kept_shards(self) -> Iterator[torch.Tensor]:
        """Yield the weights of all versions; the newest ones are the module's."""
        for version in self.versions:
            yield from version.tensors.values()

    @property
    def sent_bytes(self) -> float:
        """Bytes that this rank has sent in training: activations, gradients, parts of sums."""
        return self.pushed_bytes

    @property
    def facts(self) -> dict[str, Any]:  # type: ignore[override]
        """Where this rank's time went, how old its gradients were, what its old weights took."""
        return {
            "exchange_s": self.exchange_s,
            "num_batches": self.num_slots // self.strategy.microbatches,
            "staleness": {str(steps): count for steps, count in self.staleness.items()},
            "stage": self.index,
            "weight_versions": self.most_versions,
            "stash_bytes": self.stash_bytes,
            "stage_bytes": sum(p.nbytes for p in self.parameters.values()),
        }
