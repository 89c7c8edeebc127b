"""The strategies: how a model is trained over the ranks. One short file for each."""

from collections.abc import Callable
from typing import Any

from scalebench.spec import Mesh
from scalebench.spec.workload import Workload
from scalebench.worker.process.context import RankContext
from scalebench.worker.strategies.asynchronous.fedavg import FedAvgTraining
from scalebench.worker.strategies.asynchronous.parameter_server import ParameterServerTraining
from scalebench.worker.strategies.asynchronous.pipedream import PipeDreamTraining
from scalebench.worker.strategies.asynchronous.replica import (
    DiLoCoTraining,
    ElasticAveragingTraining,
    GossipTraining,
    LocalSgdTraining,
)
from scalebench.worker.strategies.base import Training
from scalebench.worker.strategies.compressed import CompressedTraining
from scalebench.worker.strategies.data_parallel import PlainTraining, Zero1Training, ddp_training
from scalebench.worker.strategies.expert import ExpertTraining
from scalebench.worker.strategies.frameworks.accelerate import AccelerateTraining
from scalebench.worker.strategies.frameworks.deepspeed import DeepSpeedTraining
from scalebench.worker.strategies.frameworks.fabric import FabricTraining
from scalebench.worker.strategies.frameworks.fairscale import FairScaleTraining
from scalebench.worker.strategies.frameworks.horovod import HorovodTraining
from scalebench.worker.strategies.fsdp import Fsdp1Training, FsdpTraining
from scalebench.worker.strategies.mesh.pipeline import MeshPipelineTraining, PipelineTraining
from scalebench.worker.strategies.mesh.training import ContextTraining, MeshTraining, TensorTraining


def mesh_training(strategy: Mesh, workload: Workload, context: RankContext) -> Training:
    """Return the training of a mesh: of its experts, its pipeline, or all else."""
    experts = strategy.as_expert()
    if experts is not None:
        return ExpertTraining(experts, workload, context)
    in_line = strategy.ranks_per_pipeline(context.cell.world_size) > 1
    return (MeshPipelineTraining if in_line else MeshTraining)(strategy, workload, context)


TRAININGS: dict[str, Callable[[Any, Workload, RankContext], Training]] = {
    "plain": PlainTraining,
    "ddp": ddp_training,
    "fsdp": FsdpTraining,
    "fsdp1": Fsdp1Training,
    "zero1": Zero1Training,
    "pipeline": PipelineTraining,
    "layerwise": PipelineTraining,
    "tensor": TensorTraining,
    "mesh": mesh_training,
    "context": ContextTraining,
    "expert": ExpertTraining,
    "compressed": CompressedTraining,
    "local-sgd": LocalSgdTraining,
    "diloco": DiLoCoTraining,
    "gossip": GossipTraining,
    "elastic": ElasticAveragingTraining,
    "fedavg": FedAvgTraining,
    "parameter-server": ParameterServerTraining,
    "pipedream": PipeDreamTraining,
    "pipedream-2bw": PipeDreamTraining,
    "deepspeed": DeepSpeedTraining,
    "accelerate": AccelerateTraining,
    "fabric": FabricTraining,
    "fairscale": FairScaleTraining,
    "horovod": HorovodTraining,
}


def build_training(workload: Workload, context: RankContext) -> Training:
    """Return the training loop body that the cell's strategy asks for."""
    strategy = context.cell.strategy
    return TRAININGS[strategy.kind](strategy, workload, context)
