"""Which configurations a strategy of scalebench trains, for many at once."""

import numpy as np
import numpy.typing as npt

from scalebench.costmodel.search.choice import choice_at
from scalebench.costmodel.search.job import CHECKPOINTING, PRECISIONS, SCHEDULES, Job
from scalebench.costmodel.search.space import AXES, Candidates, Ints
from scalebench.costmodel.search.strategies import strategy_of


class Trainable:
    """Asks `strategy_of` once for each kind of configuration.

    A kind is which axes have several ranks, and everything that is no size: in the space, whose
    sizes divide the job, no answer depends on a size (a test asks for every configuration).
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._known: dict[int, bool] = {}

    def __call__(self, of: Candidates) -> npt.NDArray[np.bool_]:
        """Return which of them a strategy trains."""
        kinds, first, place = np.unique(_kinds(of), return_index=True, return_inverse=True)
        answers = [
            self._answer(of, int(kind), int(i)) for kind, i in zip(kinds, first, strict=True)
        ]
        return np.array(answers, dtype=bool)[place]

    def _answer(self, of: Candidates, kind: int, i: int) -> bool:
        if kind not in self._known:
            job = self._job
            found = strategy_of(
                choice_at(of, i), job.device, job.world_size, job.batch, job.model.experts
            )
            self._known[kind] = not isinstance(found, str)
        return self._known[kind]


def _kinds(of: Candidates) -> Ints:
    """Return the kind of each as one number."""
    several = [(getattr(of, axis) > 1, 2) for axis in AXES]
    others = [
        (of.zero, 4),
        (of.schedule, len(SCHEDULES)),
        (of.chunks > 1, 2),
        (of.microbatches > 1, 2),
        (of.checkpointing, len(CHECKPOINTING)),
        (of.precision, len(PRECISIONS)),
        (of.ring, 2),
    ]
    key = np.zeros(len(of), dtype=np.int64)
    for column, values in (*several, *others):
        key = key * values + column
    return key
