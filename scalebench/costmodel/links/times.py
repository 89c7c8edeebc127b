"""What operations cost at any number of ranks, from fits at some of them."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from scalebench.costmodel.links.fitted import LinkFit, PredictedTime, Regime
from scalebench.costmodel.links.laws import law_terms
from scalebench.records.measured.probes import RehearsedPipeline, RehearsedStep

LinkTimes = Callable[[str, int, int], "LinkTime"]
"""(operation, ranks, full size in bytes) → what it takes; raises NoFit."""


class NoFit(Exception):
    """An operation whose time nothing supports; the text says why."""


@dataclass(frozen=True)
class LinkTime:
    """The predicted time of one operation.

    Attributes:
        time_s: Seconds.
        low_s: Lower end of the 95 % interval.
        high_s: Upper end.
        world_sizes: Numbers of ranks at which was measured what this rests on.
        outside: Why no fitted regime holds at this size, so that a line was continued beyond its
            support; None: one does.
        dof: Degrees of freedom behind the interval; infinite: it has none to speak of.
    """

    time_s: float
    low_s: float
    high_s: float
    world_sizes: tuple[int, ...]
    outside: str | None = None
    dof: float = math.inf


class LinkModel:
    """Fits of the backend's operations, put together over the numbers of ranks.

    At a number of ranks that was measured, its own fit answers. At any other the law does, with
    the α and B of the nearest that was measured; the interval then holds what each of the others
    would have said, and widens with every doubling beyond them by as much as their answers moved
    apart within one.

    Attributes:
        rehearsals: Pipelines and other steps that were played over these links.
    """

    def __init__(
        self,
        fits: Iterable[LinkFit],
        dtype: str = "float32",
        rehearsals: Sequence[RehearsedPipeline | RehearsedStep] = (),
    ) -> None:
        self.rehearsals = tuple(rehearsals)
        chosen = [fit for fit in fits if fit.algorithm == "backend"]
        self._of: dict[str, dict[int, LinkFit]] = {}
        for fit in sorted(chosen, key=lambda fit: fit.dtype != dtype):
            self._of.setdefault(fit.op, {}).setdefault(fit.world_size, fit)

    @property
    def world_sizes(self) -> tuple[int, ...]:
        """All numbers of ranks with a fit, ascending."""
        return tuple(sorted({n for fits in self._of.values() for n in fits}))

    def below(self, world_size: int) -> "LinkModel":
        """Return the model that knows nothing of this many ranks or more."""
        fits = [f for of in self._of.values() for n, f in of.items() if n < world_size]
        return LinkModel(fits, rehearsals=[r for r in self.rehearsals if r.world_size < world_size])

    def time(self, op: str, world_size: int, size_bytes: int) -> LinkTime:
        """Return what an operation takes; nothing at one rank.

        Raises:
            NoFit: The operation was not fitted at any number of ranks.
        """
        if world_size == 1:
            return LinkTime(0.0, 0.0, 0.0, ())
        fits = self._of.get(op, {})
        if not fits:
            raise NoFit(f"no {op} was calibrated")
        if world_size in fits:
            return _direct(fits[world_size], size_bytes)
        return _by_law(list(fits.values()), world_size, size_bytes)

    def faster(self, times: float) -> LinkTimes:
        """Return what operations take on a link that carries ``times`` as much.

        Under ``α + D/B`` a link of k times the bandwidth treats D bytes as it did D/k.
        """
        return lambda op, n, size: self.time(op, n, max(1, round(size / times)))

    def bandwidth_byte_per_s(self, op: str, world_size: int) -> float:
        """Return the B of an operation's largest sizes at the nearest N that was measured.

        Raises:
            NoFit: The operation was not fitted, or no bandwidth shows in its times.
        """
        regime = self._nearest(op, world_size).regimes[-1]
        if regime.bandwidth_byte_per_s is None:
            raise NoFit(f"the times of {op} show no bandwidth")
        return regime.bandwidth_byte_per_s

    def _nearest(self, op: str, world_size: int) -> LinkFit:
        fits = self._of.get(op, {})
        if not fits:
            raise NoFit(f"no {op} was calibrated")
        return min(fits.values(), key=lambda fit: abs(math.log2(world_size / fit.world_size)))

    def bandwidth_term(self, op: str, world_size: int, size_bytes: int) -> float:
        """Return the textbook's bandwidth term alone, ``factor·D/B``, without latency; seconds.

        B is that of the largest sizes at the nearest number of ranks that was measured.

        Raises:
            NoFit: The operation was not fitted at any number of ranks.
        """
        fit = self._nearest(op, world_size)
        bandwidth = fit.regimes[-1].bandwidth_byte_per_s or math.inf
        return law_terms(op, fit.law, world_size).bytes_factor * size_bytes / bandwidth


def _direct(fit: LinkFit, size_bytes: int) -> LinkTime:
    predicted = fit.predict(size_bytes)
    low, high = _interval(predicted, fit, size_bytes)
    dof = _nearest(fit, size_bytes).freedom
    return LinkTime(predicted.time_s, low, high, (fit.world_size,), predicted.outside, dof)


def _interval(predicted: PredictedTime, fit: LinkFit, size_bytes: int) -> tuple[float, float]:
    """Return the interval; outside the fitted sizes, that of the nearest regime's line."""
    if predicted.low_s is not None and predicted.high_s is not None:
        return predicted.low_s, predicted.high_s
    return _nearest(fit, size_bytes).interval_s(size_bytes, fit.terms)


def _nearest(fit: LinkFit, size_bytes: int) -> Regime:
    return min(
        fit.regimes, key=lambda r: max(r.min_bytes / size_bytes, size_bytes / r.max_bytes, 1.0)
    )


def _by_law(fits: Sequence[LinkFit], world_size: int, size_bytes: int) -> LinkTime:
    """Return what the law makes of the fits at other numbers of ranks."""

    def distance(fit: LinkFit) -> float:
        return abs(math.log2(world_size / fit.world_size))

    ordered = sorted(fits, key=distance)
    try:
        times = [_carried(fit, world_size, size_bytes) for fit in ordered]
    except ValueError as reason:  # the law does not hold for this many ranks
        raise NoFit(str(reason)) from reason
    center, nearest = times[0], ordered[0]
    predicted = nearest.predict(size_bytes)
    low, high = _interval(predicted, nearest, size_bytes)
    moved = max(
        (
            abs(math.log(time / center)) / abs(math.log2(fit.world_size / nearest.world_size))
            for fit, time in zip(ordered[1:], times[1:], strict=True)
        ),
        default=0.0,
    )
    reach = moved * (1 + distance(nearest))
    return LinkTime(
        center,
        center * low / predicted.time_s * math.exp(-reach),
        center * high / predicted.time_s * math.exp(reach),
        tuple(sorted(fit.world_size for fit in fits)),
        predicted.outside,
        _nearest(nearest, size_bytes).freedom,
    )


def _carried(fit: LinkFit, world_size: int, size_bytes: int) -> float:
    """Return a fit's α and B under its law at another number of ranks, seconds."""
    terms = law_terms(fit.op, fit.law, world_size)
    return _nearest(fit, size_bytes).time_s(size_bytes, terms)
