"""What other frameworks send and keep: laws by stage, against closed forms."""

import pytest

from scalebench.costmodel.memory import MeasuredBaseline, predict_memory, predict_state_bytes
from scalebench.records.measured.rank import Memory
from scalebench.spec import DeepSpeed, FairScale, Plain


def test_state_follows_the_stage():
    states = [predict_state_bytes(DeepSpeed(stage=stage), 1000, 4) for stage in range(4)]
    assert states == [16_000, 10_000, 7_000, 4_000]


GPT_TINY = 437_760
"""Parameters."""
ALONE = MeasuredBaseline(
    Plain(),
    16,
    Memory(
        gradients_bytes=0,
        data_bytes=4_062_435,
        activations_bytes=21_045_768,
        activations_peak_bytes=21_045_768,
    ),
)
"""gpt-tiny on one rank, batch 16, as it was measured."""


@pytest.mark.parametrize(
    ("strategy", "world_size", "measured", "within"),
    [
        (DeepSpeed(stage=0), 2, 19_838_815, 0.001),
        (DeepSpeed(stage=1), 2, 44_781_819, 0.01),
        (DeepSpeed(stage=2), 2, 44_780_795, 0.01),
        (DeepSpeed(stage=2), 1, 57_139_451, 0.022),  # the bucket is made after the first frees
        (DeepSpeed(stage=3), 2, 45_177_600, 0.001),
        (DeepSpeed(stage=3), 1, 60_077_824, 0.001),
        (FairScale(), 2, 19_936_035, 0.006),
    ],
)
def test_memory_is_as_it_was_measured_on_cpu_ranks(strategy, world_size, measured, within):
    """Of DeepSpeed 0.19.8 and FairScale 0.4.13."""
    batch = 16 // world_size
    found = predict_memory(
        strategy, GPT_TINY, batch, baseline=ALONE, world_size=world_size, optimizer="AdamW"
    )
    assert found.total_bytes == pytest.approx(measured, rel=within)
