"""Clients of federated training: who has which samples of a workload."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.workloads.order import ResidentBatches

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

    Args:
        classes: Of each sample.
        num_clients: Among whom they are divided.
        concentration: Of the distribution: near 0 a class goes to one client, large values divide
            it evenly.
        seed: Of the division.

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
