"""What is said of two configurations, and of a job that fits nowhere, word by word."""

import pytest

from scalebench.costmodel.search.choice import Choice
from scalebench.costmodel.search.reasons import what_would_fit, why_faster
from scalebench.costmodel.search.step.parts import PARTS
from tests.unit.costmodel.search.jobs import job

FIRST, SECOND, THIRD = list(PARTS)[:3]


def choice(mesh: dict[str, int], *parts_s: float) -> Choice:
    parts = dict.fromkeys(PARTS, 0.0) | dict(zip(PARTS, parts_s, strict=False))
    return Choice(**{"data": 1, **mesh}, step_s=sum(parts_s), parts_s=parts)


ONE, OTHER = {"data": 4}, {"tensor": 4}


@pytest.mark.parametrize(("more_s", "told"), [(4.9, False), (5.0, False), (5.1, True)])
def test_a_loss_is_told_from_a_twentieth_of_the_gain_on(more_s: float, told: bool) -> None:
    """The first gains 100 s on the second part, and loses on the third."""
    said = why_faster(choice(ONE, 300.0, 100.0, more_s), choice(OTHER, 300.0, 200.0, 0.0))
    assert said.endswith(
        f"100 s less on the bubble, and {more_s:.2f} s more on tensor groups' messages."
        if told
        else "100 s less on the bubble."
    )
    faster = 100 - more_s
    assert f"is {faster:.1f} s ({100 * faster / (400 + more_s):.2g} %) faster" in said


def test_a_step_that_is_not_shorter_takes_equally_long() -> None:
    same = (
        "data 4 and tensor 4 take equally long by the model; the first recomputes less or needs "
        "less memory."
    )
    assert why_faster(choice(ONE, 2.0, 3.0), choice(OTHER, 3.0, 2.0)) == same
    assert why_faster(choice(ONE, 2.0, 4.0), choice(OTHER, 3.0, 2.0)) == same
    assert why_faster(choice(ONE, 2.0, 3.0), choice(OTHER, 3.0, 2.1)) != same


@pytest.mark.parametrize(
    ("size", "shown", "given"),
    [
        (4e9, "5.00 GB", "6GB"),
        (7.99e8, "999 MB", "999MB"),
        (8e8, "1.00 GB", "2GB"),
        (2e8, "250 MB", "251MB"),
        (8e5, "1.00 MB", "2MB"),
        (7.6e5, "950 kB", "951kB"),
        (1_999_999_999 / 1.25, "2.00 GB", "2GB"),  # a byte less than that
        (1_999_999 / 1.25, "2.00 MB", "2MB"),
    ],
)
def test_a_limit_is_given_that_is_above_what_is_needed(size: float, shown: str, given: str) -> None:
    """With a margin of a quarter."""
    of = job(memory_limit_bytes=3_000, margin=0.25)
    assert what_would_fit(of, size, None, 16) == (
        f"small fits nowhere: of all configurations the smallest needs {shown} a rank with the "
        f"margin of 25 %, and the limit is 3.00 kB. The cheapest change: --memory-limit {given}, "
        "or --gpus 16."
    )


def test_the_smallest_configuration_is_named_and_that_more_ranks_do_not_help() -> None:
    least = Choice(data=1, shard=4, zero=3, checkpointing="full")
    assert what_would_fit(job(), 1e9, least, None) == (
        "small fits nowhere: of all configurations the smallest (shard 4 (ZeRO-3), full "
        "checkpointing, float32) needs 1.00 GB a rank with the margin of 0 %, and the limit is 0 "
        "B. The cheapest change: --memory-limit 2GB, as more ranks do not help."
    )
