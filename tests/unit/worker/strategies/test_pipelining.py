"""What pipelines are made of, without ranks: layout, stand-ins for the loss, costs, marks."""

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from scalebench.spec import Pipeline
from scalebench.spec.presets import GptShape
from scalebench.spec.workload import Shard, Workload
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.pipelining.schedule import inputs_of
from scalebench.worker.strategies.pipelining.stages import cut
from scalebench.worker.workloads import build_workload

CPU = torch.device("cpu")
TINY = GptShape(name="tiny", layers=3, heads=2, width=16, context=8, batch_size=4)


def built(shape, batch_size=4):
    torch.manual_seed(0)
    return build_workload(shape, Shard(0, 1, batch_size, 0, torch.device("cpu")))


def test_a_loss_that_cannot_be_taken_apart_is_refused():
    with pytest.raises(Unsupported, match="must call module"):
        inputs_of(lambda module, batch: module(x=batch), torch.ones(2))
    with pytest.raises(Unsupported, match="does not call the module"):
        inputs_of(lambda module, batch: batch.sum(), torch.ones(2))


def test_what_cannot_be_cut_is_refused_with_the_reason():
    with pytest.raises(Unsupported, match="6 stages need as many layers, and there are 5"):
        cut(Pipeline(microbatches=2), built(TINY), 6, CPU)
    nameless = Workload(nn.Linear(2, 2), [], lambda module, batch: module(batch))
    with pytest.raises(Unsupported, match=r"names its layers: Workload\(layers"):
        cut(Pipeline(), nameless, 2, CPU)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"schedule": "gpipe", "chunks": 2}, "gpipe has 1 per rank: give chunks=1"),
        ({"schedule": "zbv"}, "zbv has 2 per rank: give chunks=2"),
        ({"schedule": "2f2b"}, "schedule"),
        ({"microbatches": 0}, "microbatches"),
    ],
)
def test_a_pipeline_that_contradicts_itself_is_refused(fields, told):
    with pytest.raises(ValidationError, match=told):
        Pipeline(**fields)
