"""Training in which the ranks do not exchange the gradients of every step."""

from collections.abc import Sequence
from typing import Literal, Self

from pydantic import Field, model_validator

from scalebench.spec.base import Device
from scalebench.spec.strategies.execution import Execution
from scalebench.spec.strategies.mesh import Pipeline


class WithoutLockstep(Execution):
    """Every rank trains a model of its own; once in several steps they exchange parameters.

    Attributes:
        period: Steps of a rank from one exchange to the next.
    """

    untraced_because = (
        "training without lockstep is not traced: a few steps do not show what ranks exchange now "
        "and then"
    )
    period: int = Field(8, ge=1)

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        return (
            "not synchronous: it does not compute what one process does; tests compare it with its "
            "known limit"
        )

    @property
    def steps_per_exchange(self) -> int:
        """After how many steps of a rank the ranks exchange anything."""
        return self.period


class LocalSgd(WithoutLockstep):
    """Local SGD: the mean of all models takes the place of each, once in ``period`` steps.

    Sources: Stich 2019, "Local SGD Converges Fast and Communicates Little"; Lin et al. 2020,
    "Don't Use Large Mini-Batches, Use Local SGD" (post-local SGD).

    Attributes:
        synchronous_steps: Steps at the start whose gradients are averaged, as DDP does it: more
            than none is post-local SGD.
    """

    kind: Literal["local-sgd"] = "local-sgd"
    about = "Local SGD and post-local SGD: models averaged once in several steps"
    synchronous_steps: int = Field(0, ge=0)


class DiLoCo(WithoutLockstep):
    """DiLoCo: what the ranks have learned in ``period`` steps is a gradient for an outer optimizer.

    The inner optimizer is the workload's; the outer one is SGD with Nesterov's momentum. Source:
    Douillard et al. 2023, "DiLoCo: Distributed Low-Communication Training of Language Models".

    Attributes:
        outer_rate: Learning rate of the outer optimizer.
        outer_momentum: Its momentum.
    """

    kind: Literal["diloco"] = "diloco"
    about = "DiLoCo: many local steps, then one step of an outer optimizer"
    period: int = Field(32, ge=1)
    outer_rate: float = Field(0.7, gt=0)
    outer_momentum: float = Field(0.9, ge=0, lt=1)


class Gossip(WithoutLockstep):
    """D-PSGD over a ring: before its step a rank mixes its model with those of its two neighbours.

    Source: Lian et al. 2017, "Can Decentralized Algorithms Outperform Centralized Algorithms?".
    """

    kind: Literal["gossip"] = "gossip"
    about = "Gossip over a ring (D-PSGD): models mixed with those of both neighbours"
    period: int = Field(1, ge=1)


class ElasticAveraging(WithoutLockstep):
    """Elastic averaging SGD: models tied to a centre by springs, and the centre to their mean.

    Source: Zhang, Choromanska & LeCun 2015, "Deep learning with Elastic Averaging SGD".

    Attributes:
        moving_rate: β of the paper: which part of its way to the mean the centre goes in an
            exchange. Each model goes β/N of its way to the centre.
    """

    kind: Literal["elastic"] = "elastic"
    about = "Elastic averaging (EASGD): models tied to a moving centre"
    moving_rate: float = Field(0.9, gt=0, le=1)


class FedAvg(WithoutLockstep):
    """Federated averaging: clients with separate data train in turn, and are averaged.

    In each round some clients are drawn, the same number on every rank. Each starts from the
    common model and trains ``period`` steps on its own samples. Source: McMahan et al. 2017,
    "Communication-Efficient Learning of Deep Networks from Decentralized Data".

    Attributes:
        period: Steps of a client in a round.
        clients: Their number; the workload's samples are divided among them.
        clients_per_rank: Clients that each rank trains in a round, one after the other.
        concentration: Parameter of the Dirichlet distribution by which each class is divided among
            the clients (Yurochkin et al. 2019): the smaller, the more a client has of few classes.
            None: all clients have the same mixture.
    """

    kind: Literal["fedavg"] = "fedavg"
    about = "FedAvg: clients with separate data, some drawn for each round"
    clients: int = Field(16, ge=1)
    clients_per_rank: int = Field(1, ge=1)
    concentration: float | None = Field(None, gt=0)

    @property
    def steps_per_exchange(self) -> int:
        """Steps of a rank in a round: those of all its clients."""
        return self.period * self.clients_per_rank

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        drawn = self.clients_per_rank * world_size
        if drawn <= self.clients:
            return None
        return (
            f"{world_size} ranks draw {drawn} clients in a round, and there are {self.clients}; "
            f"choose clients of at least {drawn}"
        )


class ParameterServer(WithoutLockstep):
    """Workers push gradients to servers, which step and answer with the parameters.

    Sources: Li et al. 2014, "Scaling Distributed Machine Learning with the Parameter Server"; Ho
    et al. 2013, "More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server".

    Attributes:
        servers: Ranks that each serve an equal part of the parameters while they train; whole
            layers, if the optimizer needs these (LARS, LAMB).
        staleness_bound: Steps that a worker may be ahead of the slowest one. 0: the servers wait
            for all gradients and step by their mean, which is synchronous training. None: no
            bound, every gradient is a step as soon as it arrives, and the batches of a step go to
            the ranks that are free.
        backup_workers: Gradients that a synchronous step does not wait for: those of the slowest
            are dropped (Chen et al. 2016, "Revisiting Distributed Synchronous SGD").
        staleness_aware: Whether a gradient that is τ steps old makes a step τ times as small (Zhang
            et al. 2016, "Staleness-aware Async-SGD for Distributed Deep Learning").
        pushes: When gradients are sent, and in which order. ``"together"``: after the backward
            pass, in one message. ``"backward"``: each as soon as the backward pass has it, whole
            tensors in its order. ``"priority"``: the same in chunks, and what the next forward pass
            needs first goes first (Jayarajan et al. 2019, "Priority-based Parameter Propagation for
            Distributed DNN Training"; Peng et al. 2019, "A Generic Communication Scheduler for
            Distributed DNN Training Acceleration"). With both a layer of the forward pass waits for
            its own parameters only.
        chunk_mb: The size of a chunk at most, megabytes; None: 0.25, or whole layers, if the
            optimizer needs these.
    """

    kind: Literal["parameter-server"] = "parameter-server"
    about = "Parameter server: synchronous, asynchronous, or with bounded staleness"
    period: Literal[1] = 1
    servers: int = Field(1, ge=1)
    staleness_bound: int | None = Field(None, ge=0)
    backup_workers: int = Field(0, ge=0)
    staleness_aware: bool = False
    pushes: Literal["together", "backward", "priority"] = "together"
    chunk_mb: float | None = Field(None, gt=0)

    @model_validator(mode="after")
    def _options_that_fit(self) -> Self:
        synchronous = self.staleness_bound == 0
        if self.backup_workers and not synchronous:
            raise ValueError(
                f"backup_workers={self.backup_workers} needs staleness_bound=0: only a synchronous "
                "step waits for all gradients"
            )
        if self.backup_workers and self.servers > 1:
            raise ValueError(
                f"backup_workers={self.backup_workers} needs servers=1: several servers would drop "
                "parts of different gradients"
            )
        if self.staleness_aware and synchronous:
            raise ValueError(
                "staleness_aware=True is for asynchronous training: with staleness_bound=0 no "
                "gradient is stale"
            )
        if self.pushes != "together" and (self.backup_workers or not synchronous):
            raise ValueError(
                f'pushes="{self.pushes}" needs staleness_bound=0 and backup_workers=0: a layer '
                "waits for a step by the gradients of all ranks"
            )
        if self.pushes != "together" and self.compile:
            raise ValueError(
                f'pushes="{self.pushes}" needs compile=False: each layer waits for its parameters, '
                "which a compiled model cannot"
            )
        if self.pushes != "priority" and self.chunk_mb is not None:
            raise ValueError(
                f'chunk_mb={self.chunk_mb:g} needs pushes="priority": other pushes are not cut'
            )
        return self

    def why_not_whole_layers(self, optimizer: str) -> str | None:
        """Say why an optimizer that needs whole layers cannot train with this; None: it can."""
        if self.chunk_mb is None:
            return None
        return (
            f"chunk_mb={self.chunk_mb:g} cuts layers, and {optimizer} needs the norm of whole "
            "ones; leave out chunk_mb, then whole layers are sent"
        )

    @property
    def shares_work(self) -> bool:
        """Whether the batches of a step go to a rank that is free."""
        return self.staleness_bound is None or self.backup_workers > 0

    def dispensable(self, world_size: int) -> Sequence[int]:
        """Return all ranks that serve nothing, unless every step needs the gradients of all.

        What a server keeps is gone with it.
        """
        if self.staleness_bound == 0 and not self.backup_workers:
            return ()
        return range(self.servers, world_size)

    @property
    def unverified_because(self) -> str | None:
        """Why its results cannot be compared with those of one process."""
        if self.staleness_bound == 0 and not self.backup_workers:
            return "no rank has the averaged gradients; tests compare the parameters with DDP's"
        return super().unverified_because

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.backup_workers >= world_size:
            return (
                f"{self.backup_workers} backup workers leave none of the {world_size} ranks whose "
                "gradient a step waits for; choose fewer"
            )
        if self.servers <= world_size:
            return None
        return f"{self.servers} servers are more than the {world_size} ranks; choose fewer"


class PipeDream(WithoutLockstep):
    """A pipeline that is never flushed: forward and backward passes of several batches alternate.

    N ranks are N stages. Each steps as soon as it has its gradient of a batch, and keeps the
    weights with which a batch went forwards for its backward pass (weight stashing). Source:
    Narayanan et al. 2019, "PipeDream: Generalized Pipeline Parallelism for DNN Training".

    Attributes:
        microbatches: Parts of a batch: each batch passes the stages whole.
        split: Which layers make a stage; see `Pipeline`.
    """

    kind: Literal["pipedream"] = "pipedream"
    about = "PipeDream: an asynchronous pipeline with weight stashing"
    period: Literal[1] = 1
    microbatches: int = Field(1, ge=1, le=1)
    split: Literal["balanced", "measured", "even", "unbalanced"] = "balanced"

    def as_pipeline(self) -> Pipeline:
        """Return the stages as those of a pipeline."""
        return Pipeline(
            schedule="gpipe",
            microbatches=self.microbatches,
            split=self.split,
            autocast=self.autocast,
            compile=self.compile,
        )

    def staleness(self, stage: int, num_stages: int) -> int:
        """Return how many steps a gradient of a stage is old once the pipeline is full."""
        return num_stages - 1 - stage

    def weight_versions(self, stage: int, num_stages: int) -> int:
        """Return how many versions of its weights a stage keeps, the newest among them."""
        return num_stages - stage

    def num_shards(self, world_size: int) -> int:
        """Return 1: all stages train on the same samples."""
        return 1

    def num_parts(self, world_size: int) -> int:
        """Return the parts of a batch."""
        return self.microbatches

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.checkpointing:
            return (
                "a stage that recomputes its forward pass would do so with newer weights; give "
                "checkpointing=False"
            )
        return None


class PipeDream2BW(PipeDream):
    """PipeDream-2BW: gradients of a batch's microbatches add up, and two versions suffice.

    On every stage batch t passes with the weights after t − 1 batches, which all stages have by
    then. Source: Narayanan et al. 2021, "Memory-Efficient Pipeline-Parallel DNN Training".

    Attributes:
        microbatches: Parts of a batch, at least as many as there are stages.
    """

    kind: Literal["pipedream-2bw"] = "pipedream-2bw"  # type: ignore[assignment]
    about = "PipeDream-2BW: an asynchronous pipeline with double-buffered weights"
    microbatches: int = Field(4, ge=1)

    def staleness(self, stage: int, num_stages: int) -> int:
        """Return 1, on every stage; 0 for one stage."""
        return min(1, num_stages - 1)

    def weight_versions(self, stage: int, num_stages: int) -> int:
        """Return 2, on every stage; 1 for one stage."""
        return min(2, num_stages)

    def why_not(self, device: Device, world_size: int) -> str | None:
        """Say why ranks cannot run this at a size on a device; None: they can, for all we know."""
        if self.microbatches < world_size:
            return (
                f"two versions suffice for as many microbatches as stages: {self.microbatches} for "
                f"{world_size} stages; give microbatches={world_size} or more, or PipeDream"
            )
        return super().why_not(device, world_size)
