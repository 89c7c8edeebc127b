"""The fastest configurations, exactly: what a bound excludes could not have been among them.

A candidate is left out where its bound (no communication) is above the steps of as many meshes as
are asked for, and another one is both faster than the bound and needs no more memory. Neither the
best ones nor the front of step time against memory can miss it then.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from scalebench.search.candidates import Candidates, Floats, Ints, joined
from scalebench.search.prediction.memory import fits, memory_bytes
from scalebench.search.prediction.step import StepParts, bound_s, step_parts
from scalebench.search.space import Job, Mesh, candidates, meshes

OnProgress = Callable[[str, object], None]
Mask = npt.NDArray[np.bool_]
Trains = Callable[[Candidates], Mask]
"""Which of some candidates a strategy trains."""

REJECTED_KEPT = 64
"""Of the configurations that do not fit, so many are kept: some can be trained to prove it."""

FIRST_LOOKS = (256, 4096)
"""After so many of a chunk, those with the lowest bounds, what is left is looked at again."""


CLOSE = 1.05
"""Predicted steps within this ratio are taken for equal: no model of a device is exacter."""


def first_to_try(step_s: Floats, stages: Ints) -> int:
    """Return the place of the configuration to train first: the simplest of the fastest.

    Of those that are `CLOSE` to the fastest it has the fewest stages, as what the model does not
    know of (a host that is late, a message that is delayed) costs a pipeline most; on published
    rows the worst first choice takes 1.6 times as long as the best one, 4.4 times without this.

    Args:
        step_s: Predicted, at least one.
        stages: Ranks of each pipeline.
    """
    return int(np.lexsort((step_s, stages, step_s > CLOSE * step_s.min()))[0])


@dataclass(frozen=True)
class Found:
    """Candidates with their step and memory; columns of equal length.

    Attributes:
        parts: Of each step.
        memory_bytes: Predicted peak, without margin.
    """

    candidates: Candidates
    parts: StepParts
    memory_bytes: Floats

    def __len__(self) -> int:
        return len(self.candidates)

    @property
    def step_s(self) -> Floats:
        """Predicted step."""
        return self.parts.step_s

    def take(self, where: npt.NDArray[np.generic]) -> "Found":
        """Return some of them: a mask, or places."""
        parts = {f.name: getattr(self.parts, f.name)[where] for f in fields(StepParts)}
        return Found(self.candidates.take(where), StepParts(**parts), self.memory_bytes[where])


@dataclass(frozen=True)
class Ranking:
    """What a search came to.

    Attributes:
        best: The fastest of each mesh and ZeRO stage, in order; as many as were asked for, if so
            many fit.
        front: The fastest for each amount of memory, from least memory to least time.
        ways: As ``best``, of all that were evaluated; behind ``best`` bounds may have excluded
            some.
        trained: As ``best``, of those that a strategy trains: the fastest such way of each mesh and
            ZeRO stage; empty: no one asked.
        rejected: Of those that do not fit, the ones that need least memory, one of each mesh and
            ZeRO stage, the smallest first; empty: all fit.
        num_candidates: Of the whole space.
        num_meshes: Of the space.
        num_fitting: Whose predicted memory, with the margin, is below the limit.
        num_evaluated: Whose step was predicted; of the other fitting ones the bound was enough.
        smallest_bytes: The least memory of any candidate.
    """

    best: Found
    front: Found
    ways: Found
    trained: Found
    rejected: Found
    num_candidates: int
    num_meshes: int
    num_fitting: int
    num_evaluated: int
    smallest_bytes: float


def search(
    job: Job,
    wanted: int = 10,
    on_progress: OnProgress | None = None,
    prune: bool = True,
    trains: Trains | None = None,
) -> Ranking:
    """Rank the space.

    Args:
        job: What is searched.
        wanted: How many of the fastest are returned.
        on_progress: Told what is done, and how many of how many meshes.
        prune: Whether bounds save work; the result is the same.
        trains: Says what a strategy trains; None: ``trained`` stays empty.

    Raises:
        UsageError: No mesh divides the ranks.
        NoFit: Nothing tells what an operation takes.
    """
    found = meshes(job)
    state = _State(job, wanted, prune, trains)
    for part in _in_parts(found):
        for some in candidates(job, part):
            state.add(some)
        if on_progress is not None:
            on_progress(f"{state.num_candidates:,} configurations", None)
    return state.ranking(len(found))


def _in_parts(found: Sequence[Mesh], size: int = 256) -> Iterator[Sequence[Mesh]]:
    """Yield the meshes, those with the shortest pipelines and smallest groups first."""
    ordered = sorted(found, key=lambda mesh: (mesh.pipeline * mesh.tensor * mesh.context, mesh))
    for begin in range(0, len(ordered), size):
        yield ordered[begin : begin + size]


class _State:
    """What is kept of the candidates so far."""

    def __init__(self, job: Job, wanted: int, prune: bool, trains: Trains | None) -> None:
        self.job, self.wanted, self.prune, self.trains = job, wanted, prune, trains
        self.kept: Found | None = None
        self.rejected: tuple[Candidates, Floats] | None = None
        self.num_candidates = self.num_fitting = self.num_evaluated = 0
        self.smallest_bytes = np.inf

    def add(self, some: Candidates) -> None:
        """Take a chunk of the space."""
        if not len(some):
            return
        self.num_candidates += len(some)
        memory = memory_bytes(self.job, some)
        fine = fits(self.job, memory)
        self.num_fitting += int(fine.sum())
        self.smallest_bytes = min(self.smallest_bytes, float(memory.min()))
        if not fine.all():
            self._reject(some.take(~fine), memory[~fine])
        some, memory = some.take(fine), memory[fine]
        if not self.prune:
            self._evaluate(some, memory)
            return
        if not len(some):
            return
        bound = bound_s(self.job, some)
        order = np.argsort(bound, kind="stable")
        # The most promising first: what they turn out to be excludes most of the others.
        for begin, end in pairwise((0, *FIRST_LOOKS, len(order))):
            mine = order[begin:end]
            mine = mine[self._still_open(some.take(mine), bound[mine], memory[mine])]
            self._evaluate(some.take(mine), memory[mine])

    def _evaluate(self, some: Candidates, memory: Floats) -> None:
        if len(some):
            self.num_evaluated += len(some)
            self.kept = self._selected(Found(some, step_parts(self.job, some), memory))

    def _reject(self, some: Candidates, memory: Floats) -> None:
        """Keep the smallest of each mesh and ZeRO stage."""
        if self.rejected is not None:
            some = joined([self.rejected[0], some])
            memory = np.concatenate([self.rejected[1], memory])
        order = np.argsort(memory, kind="stable")
        order = order[_first_of_ways(some.take(order))][:REJECTED_KEPT]
        self.rejected = some.take(order), memory[order]

    def _still_open(self, some: Candidates, bound: Floats, memory: Floats) -> Mask:
        """Return which may be among the best, those that are trained, or on the front."""
        if self.kept is None:
            return np.ones(len(bound), dtype=bool)
        worst = self._worst(_first_of_ways(self.kept.candidates))
        mask = np.asarray((bound <= worst) | ~_dominated(bound, memory, self.kept))
        if self.trains is not None:
            worst = self._worst(self._first_trained(self.kept.candidates))
            left = np.flatnonzero(~mask & (bound <= worst))
            mask[left] = self.trains(some.take(left))
        return mask

    def _worst(self, of_ways: Mask) -> float:
        """Return the step that those have to reach which are wanted."""
        assert self.kept is not None, "asked by the caller"
        steps = self.kept.step_s[of_ways]
        return float(np.sort(steps)[self.wanted - 1]) if len(steps) >= self.wanted else np.inf

    def _first_trained(self, of: Candidates) -> Mask:
        """Return the first of each mesh and stage that a strategy trains."""
        mask = np.zeros(len(of), dtype=bool)
        if self.trains is not None:
            fine = np.flatnonzero(self.trains(of))
            mask[fine[_first_of_ways(of.take(fine))]] = True
        return mask

    def _selected(self, new: Found) -> Found:
        """Return the front, and the best of each mesh and stage, of what is kept and new.

        The best is twice: of all, and of those that a strategy trains.

        Of equal steps the one that recomputes less comes first, then the one with fewer
        microbatches, then the one with less memory.
        """
        both = new if self.kept is None else _both(self.kept, new)
        of = both.candidates
        ties = (both.memory_bytes, of.microbatches, of.checkpointing)
        both = both.take(np.lexsort((*ties, both.step_s)))
        of = both.candidates
        return both.take(_on_front(both) | _first_of_ways(of) | self._first_trained(of))

    def _rejected(self) -> Found | None:
        if self.rejected is None:
            return None
        some, memory = self.rejected
        return Found(some, step_parts(self.job, some), memory)

    def ranking(self, num_meshes: int) -> Ranking:
        """Return what it came to."""
        none = _nothing()
        kept = self.kept if self.kept is not None else none
        ways = kept.take(_first_of_ways(kept.candidates))
        trained = kept.take(self._first_trained(kept.candidates))
        return Ranking(
            best=ways.take(np.arange(len(ways))[: self.wanted]),
            front=kept.take(np.flatnonzero(_on_front(kept))[::-1]),
            ways=ways,
            trained=trained.take(np.arange(len(trained))[: self.wanted]),
            rejected=self._rejected() or none,
            num_candidates=self.num_candidates,
            num_meshes=num_meshes,
            num_fitting=self.num_fitting,
            num_evaluated=self.num_evaluated,
            smallest_bytes=float(self.smallest_bytes),
        )


def _on_front(ordered: Found) -> Mask:
    """Return which need less memory than all that are faster; the fastest come first."""
    memory = ordered.memory_bytes
    if not len(memory):
        return np.zeros(0, dtype=bool)
    least = np.minimum.accumulate(memory)
    return np.concatenate(([True], memory[1:] < least[:-1]))


def _dominated(bound: Floats, memory: Floats, kept: Found) -> Mask:
    """Return which bounds are above the step of one that needs no more memory."""
    order = np.argsort(kept.memory_bytes, kind="stable")
    sizes, steps = kept.memory_bytes[order], np.minimum.accumulate(kept.step_s[order])
    place = np.searchsorted(sizes, memory, side="right") - 1
    best = np.where(place >= 0, steps[np.maximum(place, 0)], np.inf)
    return np.asarray(best < bound)


def _first_of_ways(of: Candidates) -> Mask:
    """Return the first of each mesh and ZeRO stage."""
    key = np.zeros(len(of), dtype=np.int64)
    for column in (of.tensor, of.context, of.expert, of.shard, of.data, of.pipeline, of.zero):
        key = key * (int(column.max(initial=0)) + 1) + column
    _, first = np.unique(key, return_index=True)
    mask = np.zeros(len(of), dtype=bool)
    mask[first] = True
    return mask


def _both(one: Found, other: Found) -> Found:
    parts = {
        f.name: np.concatenate([getattr(one.parts, f.name), getattr(other.parts, f.name)])
        for f in fields(StepParts)
    }
    memory = np.concatenate([one.memory_bytes, other.memory_bytes])
    return Found(joined([one.candidates, other.candidates]), StepParts(**parts), memory)


def _nothing() -> Found:
    empty, whole = np.zeros(0), np.zeros(0, dtype=np.int64)
    columns: dict[str, Any] = {f.name: whole for f in fields(Candidates)} | {"bucket_mb": empty}
    return Found(Candidates(**columns), StepParts(*[empty] * len(fields(StepParts))), empty)
