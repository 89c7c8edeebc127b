"""What a search did not measure is named as an assumption, and what it measured is not."""

from dataclasses import replace

from scalebench.costmodel.search.job import Recomputing
from scalebench.session.search.search import _assumptions
from tests.unit.costmodel.search.jobs import SPEED, job


def test_what_was_not_measured_is_named() -> None:
    told = "; ".join(_assumptions(job()))
    assert "selective checkpointing recomputes no matrix product, and is assumed" in told
    assert "full checkpointing is assumed" in told
    assert "two backward calls are assumed" in told


def test_what_was_measured_is_no_assumption() -> None:
    measured = {"selective": Recomputing(0.3, 1e-3), "full": Recomputing(0.9)}
    speed = replace(SPEED, recomputing=measured, split_s=1e-3)
    told = "; ".join(_assumptions(job(speed=speed)))
    assert "checkpointing" not in told and "backward calls" not in told
    assert len(_assumptions(job(speed=speed))) == len(_assumptions(job())) - 3
