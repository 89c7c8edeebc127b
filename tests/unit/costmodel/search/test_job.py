"""What a job asks for where nothing else is said."""

from scalebench.costmodel.search.job import (
    ASSUMED_RECOMPUTING,
    ComputeSpeed,
    Job,
    Recomputing,
)
from scalebench.costmodel.search.links import NominalLinks
from tests.unit.costmodel.search.jobs import SMALL, SPEED, TWO_LEVELS

LINKS = NominalLinks(TWO_LEVELS, "a test")


def test_the_whole_space_is_searched_on_what_torch_does_and_nothing_is_corrected() -> None:
    assert Job(SMALL, 3, 6, SPEED, LINKS) == Job(
        model=SMALL, world_size=3, batch=6, speed=SPEED, links=LINKS, device="cpu",
        memory_limit_bytes=None, margin=0.0, held_bytes=0.0, activation_ratio=1.0, sequence=True,
        scatters_messages=False, selective_sends_again=True, buckets_mb=(1.0, 5.0, 25.0),
        receives_ahead=True, gathered_bytes_each=4,
        axes=("tensor", "context", "expert", "shard", "data", "pipeline"), zero_stages=(1, 2, 3),
        checkpointing=("none", "selective", "full"),
    )  # fmt: skip


def test_gathers_run_ahead_on_gpus() -> None:
    on = {device: Job(SMALL, 3, 6, SPEED, LINKS, device=device).overlaps
          for device in ("cpu", "cuda")}  # fmt: skip
    assert on == {"cpu": False, "cuda": True}


def test_what_was_not_measured_of_a_speed_costs_nothing() -> None:
    speed = ComputeSpeed({"bfloat16": 1.0, "float32": 2.0, "fp8": 0.5}, 3.0, 4.0, "a test", {})
    assert (speed.axis_s, speed.split_s, speed.recomputing) == ({}, 0.0, {})
    assert speed.precisions == ("float32", "bfloat16")
    assert Recomputing(2.0) == Recomputing(2.0, 0.0)
    assert {"selective": Recomputing(0.0), "full": Recomputing(1.0)} == ASSUMED_RECOMPUTING
