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
    Plain,
    Race,
    Recipe,
    Suite,
)

BATCH = 8

BASE = Recipe(optimizer="adamw", learning_rate=1e-3, warmup_samples=256)
FEDERATED = Recipe(optimizer="sgd", learning_rate=0.03, warmup_samples=256)

SUITE = Suite(
    name="asynchronous",
    question="Does training without lockstep reach the same loss sooner here?",
    cases=(
        Case(name="plain", strategy=Plain(), batch_size=BATCH, recipe=BASE),
        Case(name="ddp", strategy=Ddp(), batch_size=BATCH, recipe=BASE),
        Case(name="local-sgd-8", strategy=LocalSgd(period=8), batch_size=BATCH, recipe=BASE),
        Case(
            name="post-local-sgd-8",
            strategy=LocalSgd(period=8, synchronous_steps=128),
            batch_size=BATCH,
            recipe=BASE,
        ),
        Case(name="diloco-32", strategy=DiLoCo(period=32), batch_size=BATCH, recipe=BASE),
        Case(name="elastic-8", strategy=ElasticAveraging(), batch_size=BATCH, recipe=BASE),
        Case(name="fedavg-8", strategy=FedAvg(), batch_size=BATCH, recipe=FEDERATED),
        Case(
            name="fedavg-8-uneven",
            strategy=FedAvg(concentration=0.3),
            batch_size=BATCH,
            recipe=FEDERATED,
        ),
        Case(name="server", strategy=ParameterServer(), batch_size=BATCH, recipe=BASE),
        Case(
            name="server-bound-2",
            strategy=ParameterServer(staleness_bound=2),
            batch_size=BATCH,
            recipe=BASE,
        ),
        Case(
            name="server-synchronous",
            strategy=ParameterServer(staleness_bound=0),
            batch_size=BATCH,
            recipe=BASE,
            optional=True,
        ),
        Case(
            name="servers-2",
            strategy=ParameterServer(servers=2),
            batch_size=BATCH,
            recipe=BASE,
            optional=True,
        ),
        Case(name="gossip", strategy=Gossip(), batch_size=BATCH, recipe=BASE),
        Case(
            name="gossip-8",
            strategy=Gossip(period=8),
            batch_size=BATCH,
            recipe=BASE,
            optional=True,
        ),
    ),
    workload="gpt",
    race=Race(samples=4096, evaluate_every=256),
    repeats=3,
)
