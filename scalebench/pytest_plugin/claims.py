"""Claims about measured numbers: what ``efficiency > 0.9`` means when it is an interval.

A comparison has three outcomes, by the 95 % interval [low, high] of the measured side:

===========  =======================  =======================  ==================
claim        certain                  refuted                  inconclusive
===========  =======================  =======================  ==================
``q > x``    ``low > x``              ``high <= x``            all else
``q >= x``   ``low >= x``             ``high < x``             all else
``q < x``    ``high < x``             ``low >= x``             all else
``q <= x``   ``high <= x``            ``low > x``              all else
===========  =======================  =======================  ==================

What is certain is true and what is refuted is false. What is inconclusive has no truth value:
asking for one raises `Inconclusive`, so that neither ``assert q > x`` nor ``assert not q > x``
passes. One launch has no interval, and every claim about it is inconclusive.
"""

import math
from dataclasses import dataclass
from typing import Literal

from scipy.special import stdtrit

from scalebench import units
from scalebench.stats import CONFIDENCE, Estimate

Operator = Literal[">", ">=", "<", "<="]
Outcome = Literal["certain", "refuted", "inconclusive"]

MOST_LAUNCHES = 100
"""The most launches that are worth deciding one claim."""

_TURNED: dict[Operator, Operator] = {">": "<", ">=": "<=", "<": ">", "<=": ">="}
_NEGATED: dict[Operator, Operator] = {">": "<=", ">=": "<", "<": ">=", "<=": ">"}


class Inconclusive(AssertionError):
    """The interval of a measured number lies on both sides of a bound."""


@dataclass(frozen=True, eq=False)
class Quantity:
    """A measured number that can be compared with a bound.

    Attributes:
        name: What it is, for example ``efficiency``.
        place: Of what, for example ``ddp, N=2``.
        explanation: What a failed claim says in addition to the number: where the time went.
    """

    name: str
    place: str
    estimate: Estimate
    explanation: tuple[str, ...] = ()

    @property
    def value(self) -> float:
        """The point, without its interval."""
        return self.estimate.value

    @property
    def low(self) -> float | None:
        """Lower end of the 95 % interval; None: one launch."""
        return self.estimate.low

    @property
    def high(self) -> float | None:
        """Upper end of the 95 % interval; None: one launch."""
        return self.estimate.high

    def __gt__(self, bound: float) -> "Claim":
        return compare(self, ">", bound)

    def __ge__(self, bound: float) -> "Claim":
        return compare(self, ">=", bound)

    def __lt__(self, bound: float) -> "Claim":
        return compare(self, "<", bound)

    def __le__(self, bound: float) -> "Claim":
        return compare(self, "<=", bound)

    def __str__(self) -> str:
        n = self.estimate.n
        launches = f"{n} launch{'' if n == 1 else 'es'}"
        value = _written(self.estimate, self.value)
        if self.low is None or self.high is None:
            return f"{self.name} of {self.place}: {value} ({launches}, no interval)"
        ends = f"{_written(self.estimate, self.low)} to {_written(self.estimate, self.high)}"
        return f"{self.name} of {self.place}: {value} ({ends}, 95 %, {launches})"

    __repr__ = __str__


@dataclass(frozen=True)
class Claim:
    """A claim about a quantity and what became of it; see the module's table."""

    quantity: Quantity
    operator: Operator
    bound: float
    outcome: Outcome

    def __bool__(self) -> bool:
        """Return whether the claim is certain.

        Raises:
            Inconclusive: It is neither certain nor refuted.
        """
        __tracebackhide__ = True
        if self.outcome == "inconclusive":
            raise Inconclusive("\n".join(self.lines()))
        return self.outcome == "certain"

    def lines(self) -> list[str]:
        """Say what became of the claim, why, and what the loss budget has to say."""
        claim = f"{self.quantity.name} {self.operator} {self.bound:g} is {self.outcome}"
        return [claim, str(self.quantity), *self._advice(), *self.quantity.explanation]

    def _advice(self) -> list[str]:
        if self.outcome != "inconclusive":
            return []
        if self.quantity.low is None:
            return ["one launch has no interval: give repeats of at least 3"]
        needed = launches_to_decide(self.quantity.estimate, self.bound)
        if needed is None:
            return [
                f"the interval contains {self.bound:g}; {MOST_LAUNCHES} launches would not "
                f"decide it"
            ]
        return [f"the interval contains {self.bound:g}; about {needed} launches would decide it"]


def compare(quantity: Quantity, operator: Operator, bound: float) -> Claim:
    """Return what becomes of ``quantity operator bound``.

    Raises:
        TypeError: The bound is not a finite number.
    """
    is_number = isinstance(bound, int | float) and not isinstance(bound, bool)
    if not is_number or not math.isfinite(bound):
        raise TypeError(
            f"{quantity.name} was compared with {bound!r}. Compare it with a finite number; two "
            "measured numbers compare by .value, .low and .high."
        )
    low, high = quantity.low, quantity.high
    if low is None or high is None:
        return Claim(quantity, operator, bound, "inconclusive")
    if _holds(operator, low, high, bound):
        return Claim(quantity, operator, bound, "certain")
    refuted = _holds(_NEGATED[operator], low, high, bound)
    return Claim(quantity, operator, bound, "refuted" if refuted else "inconclusive")


def compare_either_way(left: object, operator: str, right: object) -> Claim | None:
    """Return the comparison of an expression with a quantity on one side; None: it is none."""
    if operator not in _TURNED:
        return None
    known: Operator = operator
    if isinstance(left, Quantity) and isinstance(right, int | float):
        return compare(left, known, right)
    if isinstance(right, Quantity) and isinstance(left, int | float):
        return compare(right, _TURNED[known], left)
    return None


def launches_to_decide(estimate: Estimate, bound: float) -> int | None:
    """Return how many launches would have an interval that leaves out the bound.

    If value and spread stay what they are: the half-width of Student's interval is
    ``t(n − 1)·s/√n``.

    Returns:
        None: more than `MOST_LAUNCHES`, or there is no interval to judge by.
    """
    half, distance = estimate.half_width, abs(estimate.value - bound)
    if half is None or estimate.n < 2:
        return None
    spread = half * math.sqrt(estimate.n) / _t(estimate.n)
    for n in range(estimate.n + 1, MOST_LAUNCHES + 1):
        if _t(n) * spread / math.sqrt(n) < distance:
            return n
    return None


def _t(n: int) -> float:
    return float(stdtrit(n - 1, (1 + CONFIDENCE) / 2))


def _holds(operator: Operator, low: float, high: float, bound: float) -> bool:
    """Tell whether every number of the interval is on the claimed side."""
    return {">": low > bound, ">=": low >= bound, "<": high < bound, "<=": high <= bound}[operator]


def _written(estimate: Estimate, value: float) -> str:
    half = estimate.half_width
    return units.significant(value, half or None)
