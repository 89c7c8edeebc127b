"""What does it gain, and cost, to train without exchanging every step's gradients?"""

from scalebench import (
    Case,
    Ddp,
    DiLoCo,
    ElasticAveraging,
    FedAvg,
    Gossip,
    LocalSgd,
    ParameterServer,
    PipeDream,
    PipeDream2BW,
    Pipeline,
    Plain,
    Race,
    Recipe,
    Suite,
)

# Each at the best of a grid of rates a factor of two apart: the lowest loss after 4096 samples with
# one seed on two ranks. Servers that take synchronous steps have the same rate, and so has the one
# that looks at staleness as the asynchronous one. Pipelines have the rate of the plain model.
DEFAULT = {
    "plain": (Plain(), 1e-3),
    "ddp": (Ddp(), 1e-3),
    "local-sgd-8": (LocalSgd(period=8), 1e-3),
    "diloco-32": (DiLoCo(period=32), 2.5e-4),
    "elastic-8": (ElasticAveraging(period=8), 2e-3),
    "fedavg-8": (FedAvg(period=8), 1e-3),
    "server": (ParameterServer(), 5e-4),
    "server-bound-2": (ParameterServer(staleness_bound=2), 5e-4),
    "gossip": (Gossip(), 1e-3),
}
OPTIONAL = {
    "post-local-sgd-8": (LocalSgd(period=8, synchronous_steps=128), 1e-3),
    "fedavg-8-uneven": (FedAvg(period=8, concentration=0.3), 1e-3),
    "server-synchronous": (ParameterServer(staleness_bound=0), 1e-3),
    "server-backup-1": (ParameterServer(staleness_bound=0, backup_workers=1), 1e-3),
    "server-aware": (ParameterServer(staleness_aware=True), 5e-4),
    "server-backward": (ParameterServer(staleness_bound=0, pushes="backward"), 1e-3),
    "server-priority": (ParameterServer(staleness_bound=0, pushes="priority"), 1e-3),
    "servers-2": (ParameterServer(servers=2), 5e-4),
    "gossip-8": (Gossip(period=8), 1e-3),
    "1f1b": (Pipeline(schedule="1f1b", microbatches=4), 1e-3),
    "pipedream": (PipeDream(), 5e-4),
    "pipedream-2bw": (PipeDream2BW(microbatches=4), 3e-4),
}

SUITE = Suite(
    name="asynchronous",
    question="Does training without lockstep reach the same loss sooner here?",
    cases=tuple(
        Case(
            name=name,
            strategy=strategy,
            batch_size=8,
            recipe=Recipe(optimizer="adamw", learning_rate=rate, warmup_samples=256),
            optional=name in OPTIONAL,
        )
        for name, (strategy, rate) in (DEFAULT | OPTIONAL).items()
    ),
    workload="gpt",
    race=Race(samples=4096, evaluate_every=256),
    repeats=3,
)
