"""Federated averaging: in each round a few clients train, and their mean is the next model.

A client has samples of its own, which never leave it. In a round every rank draws some clients.
Each starts from the common model θ and trains H steps on its samples, with a fresh optimizer. With
n_k the samples of client k, the next common model is

    θ ← Σ n_k·θ_k / Σ n_k    over the clients of the round (McMahan et al. 2017, algorithm 1).

With one step on all of a client's samples, and all clients, this is a step of SGD on all samples.
The paper counts epochs of a client; here all train equally many steps, so that no rank waits.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from scalebench.spec import FedAvg
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.clients import (
    Indices,
    classes_of,
    divide_by_class,
    divide_evenly,
    resident,
)
from scalebench.worker.strategies.asynchronous.replica import Replica


class FedAvgTraining(Replica):
    """Clients that train one after the other on each rank; the common model is judged.

    Attributes:
        common: The common model, the same on every rank, shape [Ψ].
        samples: Of each client, indices.
    """

    def __init__(self, strategy: FedAvg, workload: Workload, context: RankContext) -> None:
        super().__init__(strategy, workload, context)
        self.strategy, self.rank, self.num_ranks = strategy, context.rank, context.cell.world_size
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
        """Return a client's samples in a round, shape [steps, batch]: epochs, shuffled anew."""
        random = np.random.default_rng([self.seed, number, client])
        own, wanted = self.samples[client], self.strategy.period * self.rank_batch
        epochs = [random.permutation(own) for _ in range(-(-wanted // len(own)))]
        return np.concatenate(epochs)[:wanted].reshape(self.strategy.period, self.rank_batch)

    def samples_of(self, client: int) -> Any:
        """Return all samples of a client as one batch."""
        return self.batches.gather(torch.from_numpy(self.samples[client]).to(self.device))

    def judged_parameters(self) -> torch.Tensor:
        """Return the common model."""
        return self.common.clone()
