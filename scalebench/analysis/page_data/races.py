"""The curves of races as a page draws them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from scalebench.analysis.rows.launches import Table
from scalebench.records.race import RacePoint


@dataclass(frozen=True)
class RaceCurve:
    """The losses of one launch of a race, from before its training to its end.

    Attributes:
        samples: That all ranks together had trained on.
        trained_s: Seconds of training.
        loss: Mean over the held-out samples; None: it was not finite.
        global_batch: Samples of a step.
        sent_bytes: That the rank which sends most had sent; None: each step sends as many.
    """

    suite: str
    case: str
    world_size: int
    repeat: int
    samples: tuple[int, ...]
    trained_s: tuple[float, ...]
    loss: tuple[float | None, ...]
    global_batch: int
    sent_bytes: tuple[float, ...] | None = None


def race_curves(table: Table) -> Iterator[RaceCurve]:
    """Yield the curve of every launch of a race."""
    for row in table.values():
        for repeat, result in row.good.items():
            points = result.ranks[0].race if result.ranks else None
            if points:
                yield RaceCurve(
                    suite=row.cell.suite,
                    case=row.cell.case,
                    world_size=row.cell.world_size,
                    repeat=repeat,
                    samples=tuple(point.samples for point in points),
                    trained_s=tuple(point.trained_s for point in points),
                    loss=tuple(point.loss for point in points),
                    global_batch=row.cell.global_batch,
                    sent_bytes=_sent(points),
                )


def _sent(points: Sequence[RacePoint]) -> tuple[float, ...] | None:
    known = tuple(point.sent_bytes for point in points if point.sent_bytes is not None)
    return known if len(known) == len(points) else None
