"""Which transfers of a sweep are still timed where its time is limited: small ones before large.

Every rank has to come to the same answers, so what is asked and told is the same on all of them.
"""

from collections import Counter

from scalebench.spec.probes import Sweep, Transfer

FEWEST_SIZES = 3
"""Of each operation, whatever they take: with fewer nothing is fitted."""


class TimeLimit:
    """Keeps count of a sweep's time.

    Args:
        plan: The sweep.

    Attributes:
        order: Places of the plan's transfers, as they are timed: with a limit by size, so that all
            operations get equally far.
    """

    def __init__(self, plan: Sweep) -> None:
        self.transfers, self.limit_s = plan.transfers, plan.time_limit_s
        places = range(len(plan.transfers))
        if self.limit_s is None:
            self.order = list(places)
            return
        self.order = sorted(places, key=lambda place: plan.transfers[place].size_bytes)
        self._spent_s = 0.0
        self._took_s: dict[int, float] = {}
        self._largest: dict[Transfer, int] = {}
        self._num_sizes: Counter[Transfer] = Counter()

    def allows(self, place: int) -> bool:
        """Tell whether a transfer may be timed (again) within what is left."""
        if self.limit_s is None:
            return True
        again = place in self._took_s
        if not again and self._num_sizes[_kind(self.transfers[place])] < FEWEST_SIZES:
            return True
        return self._spent_s + self._expected_s(place) <= self.limit_s

    def _expected_s(self, place: int) -> float:
        """Return what a timing took the last time; the first time, as long as its size says."""
        if place in self._took_s:
            return self._took_s[place]
        transfer = self.transfers[place]
        smaller = self._largest[_kind(transfer)]
        operations = (transfer.back_to_back + 1) / (self.transfers[smaller].back_to_back + 1)
        grows = transfer.size_bytes / self.transfers[smaller].size_bytes
        return self._took_s[smaller] * grows * operations

    def spent(self, place: int, took_s: float) -> None:
        """Note what a timing took, seconds, the same on every rank."""
        kind = _kind(self.transfers[place])
        if place not in self._took_s:
            self._num_sizes[kind] += 1
            self._largest[kind] = place
        self._took_s[place] = took_s
        self._spent_s += took_s


def _kind(transfer: Transfer) -> Transfer:
    """Return what the sizes of an operation have in common."""
    return transfer.model_copy(update={"size_bytes": 1, "back_to_back": 1})
