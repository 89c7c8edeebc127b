"""Strategies: how a model is trained over the ranks, as data."""

from typing import Annotated, get_args

from pydantic import Field

from scalebench.spec.strategies.data_parallel import Compressed, Ddp, Fsdp, Fsdp1, Zero1
from scalebench.spec.strategies.execution import Execution, Plain, Script
from scalebench.spec.strategies.frameworks import Accelerate, DeepSpeed, Fabric, FairScale, Horovod
from scalebench.spec.strategies.groups import Context, Expert, Tensor
from scalebench.spec.strategies.mesh import LayerWise, Mesh, Pipeline
from scalebench.spec.strategies.without_lockstep import (
    DiLoCo,
    ElasticAveraging,
    FedAvg,
    Gossip,
    LocalSgd,
    ParameterServer,
    PipeDream,
    PipeDream2BW,
)

Strategy = Annotated[
    Plain
    | Ddp
    | Fsdp
    | Fsdp1
    | Zero1
    | Pipeline
    | LayerWise
    | Tensor
    | Mesh
    | Context
    | Expert
    | Compressed
    | LocalSgd
    | DiLoCo
    | Gossip
    | ElasticAveraging
    | FedAvg
    | ParameterServer
    | PipeDream
    | PipeDream2BW
    | DeepSpeed
    | Accelerate
    | Fabric
    | FairScale
    | Horovod
    | Script,
    Field(discriminator="kind"),
]

Grouped = Tensor | Context | Expert
"""Strategies whose ranks divide samples, or the model: a rank is another thing than at N=1."""


def expert_groups(strategy: Execution) -> Expert | None:
    """Return the groups among which a strategy divides experts; None: it divides none."""
    if isinstance(strategy, Mesh):
        return strategy.as_expert()
    return strategy if isinstance(strategy, Expert) else None


STRATEGIES: dict[str, type[Execution]] = {
    one.model_fields["kind"].default: one for one in get_args(get_args(Strategy)[0])
}
"""Kind → the strategy."""
