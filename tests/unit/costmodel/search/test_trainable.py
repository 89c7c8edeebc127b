"""A strategy is asked for once for each kind of configuration, and kinds are told apart."""

from collections.abc import Sequence

import numpy as np
import pytest

from scalebench.costmodel.search import trainable
from scalebench.costmodel.search.choice import Choice, columns_of
from scalebench.costmodel.search.space import AXES, Candidates
from scalebench.costmodel.search.trainable import Trainable, _kinds
from tests.unit.costmodel.search.jobs import ROUTED, job

VALUES = {
    **dict.fromkeys(AXES, (1, 2)),
    "zero": range(4),
    "schedule": range(6),
    "chunks": (1, 2),
    "microbatches": (1, 2),
    "checkpointing": range(3),
    "precision": range(2),
    "ring": (0, 1),
}


def columns(**values: Sequence[int]) -> Candidates:
    """Return every combination of some columns; the others are those of one rank."""
    rows = [column.ravel() for column in np.meshgrid(*values.values())]
    one = columns_of([Choice(data=1)]).take(np.zeros(len(rows[0]), dtype=np.int64))
    return Candidates(**{**one.__dict__, **dict(zip(values, rows, strict=True))})


def test_no_two_kinds_have_the_same_number() -> None:
    number = len(np.unique(_kinds(columns(**VALUES))))
    assert number == 2**6 * 4 * 6 * 2 * 2 * 3 * 2 * 2


@pytest.mark.parametrize("name", [*AXES, "chunks", "microbatches"])
def test_configurations_of_other_sizes_are_of_the_same_kind(name: str) -> None:
    one, two, three, seven = _kinds(columns(**{name: (1, 2, 3, 7)}))
    assert one != two == three == seven


def test_each_kind_is_asked_for_once_with_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def strategy_of(choice: Choice, *of_job: object) -> str | Choice:
        asked.append((choice.data, choice.microbatches, *of_job))
        return "no" if choice.microbatches > 1 else choice

    monkeypatch.setattr(trainable, "strategy_of", strategy_of)
    trains = Trainable(job(6, 60, model=ROUTED, device="cuda"))
    made = columns_of([Choice(data=d, microbatches=m) for d, m in ((3, 5), (6, 1), (2, 2), (1, 1))])
    assert trains(made).tolist() == [False, True, False, True]
    assert sorted(asked) == [
        (1, 1, "cuda", 6, 60, 4), (3, 5, "cuda", 6, 60, 4), (6, 1, "cuda", 6, 60, 4)
    ]  # fmt: skip
    assert trains(made.take(np.array([1, 2]))).tolist() == [True, False]
    assert len(asked) == 3
