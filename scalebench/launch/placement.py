"""Where ranks are put: on this machine as it is, or somewhere that was made for them."""

from typing import Any, Protocol


class Placement(Protocol):
    """Says what a rank's request needs besides its job."""

    def of(self, rank: int) -> dict[str, Any]:
        """Return what puts a rank in its place.

        Returns:
            ``environment`` (variables to set) and ``place`` (what `scalebench.worker.process.place`
            enters); either may be missing.
        """
        ...

    def close(self) -> None:
        """Remove what was made."""
        ...


class ThisMachine:
    """Ranks run on this machine as it is."""

    def of(self, rank: int) -> dict[str, Any]:
        """Return nothing: there is nothing to enter."""
        return {}

    def close(self) -> None:
        """Remove nothing."""
