"""What other frameworks send and keep: laws by stage, against closed forms."""

import pytest

from scalebench.costmodel.frameworks import bucket_bytes
from scalebench.costmodel.memory import predict_state_bytes
from scalebench.costmodel.sharding import sharding_of
from scalebench.costmodel.traffic import predict_traffic
from scalebench.spec import Accelerate, Ddp, DeepSpeed, Fabric, FairScale, Fsdp, Horovod

PARAMETERS = 1000
N = 4
GATHER = (N - 1) / N * 4 * PARAMETERS


def sent(strategy) -> float:
    traffic = predict_traffic(strategy, PARAMETERS, N)
    assert traffic is not None
    return traffic.total_bytes


@pytest.mark.parametrize(
    ("strategy", "gathers"),
    [
        (Accelerate(), 2),
        (Fabric(), 2),
        (Horovod(), 2),
        (Horovod(compression="fp16"), 1),
        (DeepSpeed(stage=0), 2),
        (DeepSpeed(stage=1), 3),  # it all-reduces gradients, and gathers parameters
        (DeepSpeed(stage=2), 3),
        (Accelerate(plugin="deepspeed", stage=2), 3),
        (DeepSpeed(stage=3), 3),
        (FairScale(), 2),
    ],
)
def test_traffic_by_stage(strategy, gathers):
    assert sent(strategy) == pytest.approx(gathers * GATHER)


@pytest.mark.parametrize(("stage", "gathers"), [(0, 2), (1, 3), (2, 2 * 4 + 1), (3, 3 * 4)])
def test_deepspeed_reduces_in_every_microbatch_where_gradients_are_divided(stage, gathers):
    assert sent(DeepSpeed(stage=stage, accumulate=4)) == pytest.approx(gathers * GATHER)


def test_fsdp2_behind_a_framework_is_fsdp2():
    sizes = [600, 400]
    assert predict_traffic(Fabric(sharding="fsdp2"), PARAMETERS, N, sizes) == predict_traffic(
        Fsdp(), PARAMETERS, N, sizes
    )
    assert sharding_of(Fabric(sharding="fsdp2"), N) == sharding_of(Fsdp(), N)


def test_stage_3_as_shipped_decides_by_itself_what_to_gather():
    assert (
        predict_traffic(DeepSpeed(stage=3, bucket_mb=None, as_shipped=True), PARAMETERS, N) is None
    )


def test_state_follows_the_stage():
    states = [predict_state_bytes(DeepSpeed(stage=s), PARAMETERS, N) for s in (0, 1, 2, 3)]
    per_parameter = [4 + 4 + 8, 4 + 4 + 2, 4 + 1 + 2, 1 + 1 + 2]
    assert states == [PARAMETERS * each for each in per_parameter]


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (DeepSpeed(stage=2, bucket_mb=3), 3 * 2**20),
        (Accelerate(plugin="deepspeed", stage=1, bucket_mb=3), 3 * 2**20),
        (DeepSpeed(stage=2, bucket_mb=None, as_shipped=True), 2_000_000_000),  # of 5e8 elements
        (DeepSpeed(stage=0, bucket_mb=3), 0),
        (FairScale(), 0),
        (Ddp(), 0),
    ],
)
def test_deepspeed_keeps_a_buffer_of_a_whole_bucket(strategy, expected):
    assert bucket_bytes(strategy) == expected
