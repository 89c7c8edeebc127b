"""What a row says of the framework that trained it: its version, and what was in force."""

from typing import Any

from scalebench.records.rows.base import RowPart
from scalebench.stats import Estimate


class FrameworkFacts(RowPart):
    """The framework of a row, as its rank 0 saw it.

    Attributes:
        versions: Distribution → version; null: not found.
        untested: Of these, the ones in a version that scalebench's tests do not run with.
        tested: Distribution → the version that the tests run with; empty: an older launch, which
            does not say.
        settings: What the framework itself says is in force, by its own names.
        uncounted_memory: What ``peak_memory_bytes`` leaves out; null: nothing.
    """

    versions: dict[str, str | None]
    untested: list[str] = []
    tested: dict[str, str] = {}
    settings: dict[str, Any] = {}
    uncounted_memory: str | None = None


class AgainstFastest(RowPart):
    """How a row compares with the row of the shortest step, among frameworks at one N.

    Attributes:
        fastest: Suite, case and N of the row with the shortest step; it may be this one.
        step_ratio: This row's step over that one's, over the rounds that both ran in. All such
            intervals at this N hold together with 95 %. 1 exactly for the fastest itself.
    """

    fastest: tuple[str, str, int]
    step_ratio: Estimate
