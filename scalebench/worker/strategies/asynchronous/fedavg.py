"""Federated averaging: in each round a few clients train, and their mean is the next model.

A client has samples of its own, which never leave it. In a round every rank draws some clients.
Each starts from the common model θ and trains H steps on its samples, with a fresh optimizer. With
n_k the samples of client k, the next common model is

    θ ← Σ n_k·θ_k / Σ n_k    over the clients of the round (McMahan et al. 2017, algorithm 1).

With one step on all of a client's samples, and all clients, this is a step of SGD on all samples.
The paper counts epochs of a client; here all train equally many steps, so that no rank waits.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.spec import FedAvg
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.asynchronous.replica import Replica
from scalebench.worker.workloads.batches import ResidentBatches

NUM_PARTS = 10
"""Of a text, whose place stands for a class."""
CHUNK = 512

Indices = NDArray[np.int64]


def resident(batches: Iterable[Any]) -> ResidentBatches:
    """Return batches whose samples can be divided among clients; raises Unsupported."""
    if isinstance(batches, ResidentBatches):
        return batches
    raise Unsupported(
        "federated training divides the samples of a built-in workload among its clients; choose "
        "one, without a loader"
    )


def classes_of(batches: ResidentBatches, device: torch.device) -> Indices:
    """Return the class of every sample: its label, or of a text the tenth in which it is.

    Raises:
        Unsupported: The targets are numbers, not classes.
    """
    targets = batches.gather(torch.arange(1, device=device))[1]
    if targets.is_floating_point():
        raise Unsupported("clients with uneven classes need a workload with classes (cnn, gpt)")
    count = batches.num_samples
    if targets.ndim > 1:
        return np.arange(count) * NUM_PARTS // count
    parts = torch.arange(count, device=device).split(CHUNK)
    return np.concatenate([batches.gather(index)[1].cpu().numpy() for index in parts])


def divide_evenly(num_samples: int, num_clients: int, seed: int) -> list[Indices]:
    """Return the samples of each client: equally many, by chance.

    Raises:
        UsageError: There are fewer samples than clients.
    """
    shuffled = np.random.default_rng(seed).permutation(num_samples)
    return _all_have_some(
        np.array_split(shuffled, num_clients), "there are fewer samples than clients"
    )


def divide_by_class(
    classes: Indices, num_clients: int, concentration: float, seed: int
) -> list[Indices]:
    """Return the samples of each client, where each class is divided by a Dirichlet distribution.

    Source: Yurochkin et al. 2019, "Bayesian Nonparametric Federated Learning of Neural Networks".

    ``classes`` are of each sample. ``concentration``: near 0 a class goes to one client, large
    values divide it evenly.

    Raises:
        UsageError: A client has no samples.
    """
    random = np.random.default_rng(seed)
    parts: list[list[Indices]] = [[] for _ in range(num_clients)]
    for one in np.unique(classes):
        members = random.permutation(np.flatnonzero(classes == one))
        shares = random.dirichlet([concentration] * num_clients)
        cuts = np.round(np.cumsum(shares)[:-1] * len(members)).astype(np.int64)
        for client, samples in enumerate(np.split(members, cuts)):
            parts[client].append(samples)
    why = f"a concentration of {concentration:g} divides the classes too unevenly"
    return _all_have_some([np.concatenate(of_client) for of_client in parts], why)


def _all_have_some(divided: list[Indices], why: str) -> list[Indices]:
    without = [client for client, samples in enumerate(divided) if not len(samples)]
    if without:
        raise UsageError(
            f"{len(without)} of {len(divided)} clients have no samples (first: {without[0]}): "
            f"{why}. Choose fewer clients, or a larger concentration."
        )
    return divided


class FedAvgTraining(Replica):
    """Clients that train one after the other on each rank; the common model is judged.

    Attributes:
        common: The common model, the same on every rank, shape [Ψ].
        samples: Of each client, indices.
    """

    def __init__(self, strategy: FedAvg, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.rank, self.num_ranks = context.rank, context.cell.world_size
        self.seed, self.rank_batch = context.cell.seed, context.cell.rank_batch
        self.batches = resident(workload.batches)
        self.samples = self._divided()
        self.common = self.flat_parameters()
        self.weighted_sum = torch.zeros(self.common.numel() + 1, device=context.device)

    def _divided(self) -> list[Indices]:
        clients, concentration = self.strategy.clients, self.strategy.concentration
        if concentration is None:
            return divide_evenly(self.batches.num_samples, clients, self.seed)
        classes = classes_of(self.batches, self.device)
        return divide_by_class(classes, clients, concentration, self.seed)

    def after_step(self) -> None:
        """Add the client's model, if it was its last step; average, if it was the round's last."""
        per_round = self.strategy.steps_per_exchange
        if self.num_steps % self.strategy.period:
            return
        finished = self.num_steps - 1
        clients = self.clients_of_round(finished // per_round)
        weight = len(self.samples[clients[finished % per_round // self.strategy.period]])
        self.weighted_sum[:-1] += weight * self.flat_parameters()
        self.weighted_sum[-1] += weight
        if self.num_steps % per_round == 0:
            dist.all_reduce(self.weighted_sum)
            self.count_all_reduce()
            self.common = self.weighted_sum[:-1] / self.weighted_sum[-1]
            self.weighted_sum.zero_()
        self.set_parameters(self.common.clone())  # the next client starts from there
        self.optimizer.state.clear()

    def clients_of_round(self, number: int) -> list[int]:
        """Return the clients that this rank trains in a round, in order; all ranks draw alike."""
        drawn = np.random.default_rng([self.seed, number]).permutation(self.strategy.clients)
        per_round = self.strategy.clients_per_rank * self.num_ranks
        return [int(client) for client in drawn[:per_round][self.rank :: self.num_ranks]]

    def own_batches(self, _: Iterator[Any]) -> Iterator[Any]:
        """Yield the batches of this rank's clients, in the order of the steps, without end."""
        number = 0
        while True:
            for client in self.clients_of_round(number):
                for index in self._batches_of(client, number):
                    yield self.batches.gather(torch.from_numpy(index).to(self.device))
            number += 1

    def _batches_of(self, client: int, number: int) -> Indices:
        """Return a client's samples in a round, shape [steps, batch]: epochs, shuffled again."""
        random = np.random.default_rng([self.seed, number, client])
        own, wanted = self.samples[client], self.strategy.period * self.rank_batch
        epochs = [random.permutation(own) for _ in range(-(-wanted // len(own)))]
        return np.concatenate(epochs)[:wanted].reshape(self.strategy.period, self.rank_batch)

    def evaluated_parameters(self) -> torch.Tensor:
        """Return the common model."""
        return self.common.clone()
