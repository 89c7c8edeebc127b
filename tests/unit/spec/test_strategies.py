"""The strategies of other frameworks, as data."""

import pytest
from pydantic import ValidationError

from scalebench.spec import Accelerate, Ddp, Fabric, ParameterServer


def test_as_shipped_and_a_bucket_size_contradict_each_other():
    with pytest.raises(ValidationError, match="give bucket_mb=None"):
        Fabric(as_shipped=True)
    assert Fabric(as_shipped=True, bucket_mb=None).as_shipped


def test_a_stage_is_for_the_deepspeed_plug_in_and_it_needs_one():
    for wrong in ({"plugin": "deepspeed"}, {"plugin": "ddp", "stage": 2}):
        with pytest.raises(ValidationError, match="stage is for the DeepSpeed plug-in"):
            Accelerate(**wrong)
    assert Accelerate(plugin="deepspeed", stage=0).zero_stage == 0


def test_a_graph_is_recorded_in_a_backward_pass_that_exchanges_gradients():
    with pytest.raises(ValidationError, match="static_graph=True with accumulate=2: torch records"):
        Ddp(static_graph=True, accumulate=2)
    assert Ddp(static_graph=True, balance="measured").static_graph


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"backup_workers": 1}, "needs staleness_bound=0"),
        ({"backup_workers": 1, "staleness_bound": 0, "servers": 2}, "needs servers=1"),
        ({"staleness_aware": True, "staleness_bound": 0}, "no gradient is stale"),
        ({"pushes": "priority"}, "needs staleness_bound=0"),
        ({"pushes": "backward", "staleness_bound": 2}, "needs staleness_bound=0"),
        (
            {"pushes": "priority", "staleness_bound": 0, "backup_workers": 1},
            "needs staleness_bound=0 and backup_workers=0",
        ),
        ({"pushes": "priority", "staleness_bound": 0, "compile": True}, "needs compile=False"),
        ({"pushes": "backward", "staleness_bound": 0, "chunk_mb": 1}, 'needs pushes="priority"'),
        ({"chunk_mb": 1}, 'chunk_mb=1 needs pushes="priority"'),
        ({"pushes": "priority", "staleness_bound": 0, "chunk_mb": 0}, "greater than 0"),
    ],
)
def test_options_that_contradict_one_another(options, told):
    with pytest.raises(ValidationError, match=told):
        ParameterServer(**options)
