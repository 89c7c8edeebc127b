"""A link profile: what a calibration measured and fitted, as a file that is read again."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from pydantic import Field, FiniteFloat

from scalebench import units
from scalebench.costmodel.links.fitted import LinkFit
from scalebench.costmodel.links.fitting import fit_link, fit_links, group_points
from scalebench.costmodel.links.laws import usual_laws
from scalebench.costmodel.links.points import LinkPoint
from scalebench.errors import UsageError
from scalebench.records.base import Record
from scalebench.records.measured.probes import RehearsedPipeline, RehearsedStep, TimedTransfer
from scalebench.spec.collectives import BACKEND
from scalebench.stats import median_with_noise

FORMAT = "scalebench.link-profile/1"


class CalibratedPoint(LinkPoint):
    """A point with what nccl-tests prints next to it.

    Attributes:
        redop: ``sum`` where the operation reduces.
        p99_s: 99th percentile of the single operations; null: they were not timed one by one.
        num_elements: Elements compared with the known result; null: not known.
        source: ``measured`` here, or the file that it was read from.
    """

    redop: str | None = None
    p99_s: FiniteFloat | None = Field(default=None, gt=0)
    num_elements: int | None = None
    source: str = "measured"


class LinkProfile(Record):
    """Points, their fits, and what the fits say together.

    Attributes:
        machine: What has to agree for the profile to hold; empty: it was read from logs.
        refused: Why sweeps were not fitted.
        notices: What a reader has to know.
        cut_short: What the time limit of the calibration left out.
        rehearsals: Pipelines that were played without their models.
        rehearsed_steps: Steps of other strategies that were.
    """

    format: str = FORMAT
    created: str
    version: str
    machine: dict[str, Any] = Field(default_factory=dict)
    device: str
    backend: str
    link: str = ""
    points: tuple[CalibratedPoint, ...]
    fits: tuple[LinkFit, ...]
    refused: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    cut_short: tuple[str, ...] = ()
    rehearsals: tuple[RehearsedPipeline, ...] = ()
    rehearsed_steps: tuple[RehearsedStep, ...] = ()

    @property
    def played(self) -> tuple[RehearsedPipeline | RehearsedStep, ...]:
        """Everything that was played without its model."""
        return (*self.rehearsals, *self.rehearsed_steps)

    @property
    def num_wrong(self) -> int:
        """Elements of results that were wrong, where they were counted."""
        return sum(point.num_wrong or 0 for point in self.points)


REDUCING = ("all_reduce", "reduce_scatter", "reduce")


def point_of(timed: TimedTransfer, world_size: int, link: str) -> CalibratedPoint:
    """Return the point of a measured transfer: the median operation, and the 99th percentile.

    Where operations were not timed one by one, the median timing, and no percentile.
    """
    transfer = timed.transfer
    center, noise = median_with_noise(timed.each_s or timed.time_s)
    return CalibratedPoint(
        op=transfer.operation,
        dtype=transfer.dtype,
        world_size=world_size,
        size_bytes=timed.size_bytes,
        time_s=center,
        in_place=transfer.place,
        algorithm=transfer.algorithm,
        num_wrong=timed.num_wrong,
        low_s=max(center - noise, center / 2),
        high_s=center + noise,
        link=link,
        redop="sum" if transfer.operation in REDUCING else None,
        p99_s=float(np.percentile(timed.each_s, 99)) if timed.each_s else None,
        num_elements=timed.num_elements,
    )


def profile_of(
    points: Sequence[CalibratedPoint], notices: Sequence[str], **origin: Any
) -> LinkProfile:
    """Fit points and return their profile.

    Args:
        points: Measured or read.
        notices: What a reader has to know.
        origin: ``created``, ``version``, ``machine``, ``device``, ``backend`` and ``link``.
    """
    usable = [p for p in points if p.algorithm == BACKEND and p.size_bytes]
    notices = [*notices, *_wrong(points)]
    fits, unfit = fit_links(usable, usual_laws(origin.get("backend")))
    own, refused = _own_fits(points)
    return LinkProfile(
        points=tuple(points),
        fits=(*fits, *own),
        refused=(*unfit, *refused),
        notices=tuple(notices),
        **origin,
    )


def _wrong(points: Sequence[CalibratedPoint]) -> Iterator[str]:
    """Say which sizes are not fitted because their results were wrong."""
    for key, members in group_points(points).items():
        wrong = sorted({point.size_bytes for point in members if point.is_wrong})
        if wrong:
            sizes = ", ".join(units.bytes_(size) for size in wrong)
            yield f"{key}: results were wrong at {sizes}, which the fit leaves out"


LAW_OF = {
    "ring": "ring",
    "halving-doubling": "halving-doubling",
    "tree": "binomial tree",
    "double-tree": "double binary tree",
    "gather-broadcast": "gather-broadcast",
}
"""All-reduce of `scalebench.worker.collectives` → its law; the others have two kinds of links, or
no law with a latency."""


def _own_fits(points: Sequence[CalibratedPoint]) -> tuple[list[LinkFit], list[str]]:
    """Fit each of scalebench's own all-reduces by its own law."""
    fits, refused = [], []
    for key, members in group_points(points).items():
        if key.algorithm == BACKEND:
            continue
        if key.algorithm not in LAW_OF:
            refused.append(f"{key}: there is no law of one latency and one bandwidth for it.")
            continue
        try:
            fits.append(fit_link(members, LAW_OF[key.algorithm]))
        except UsageError as error:
            refused.append(str(error))
    return fits, refused
