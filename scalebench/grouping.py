"""Values put together by what they have in common."""

from collections.abc import Iterable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")
N = TypeVar("N", int, float)


def by_key(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """Return key → its values; keys in the order in which they first appear."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def totals(pairs: Iterable[tuple[K, N]]) -> dict[K, N]:
    """Return key → the sum of its values, in the order in which they come; keys likewise."""
    found: dict[K, N] = {}
    for key, value in pairs:
        found[key] = found.get(key, 0) + value
    return found
