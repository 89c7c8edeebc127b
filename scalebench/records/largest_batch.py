"""The largest batch of a rank that fits, as ``--max-batch`` finds it for a row."""

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress

from pydantic import Field

from scalebench.records.base import LARGE, Record
from scalebench.spec import Cell


class LargestBatch(Record):
    """What the search found for one case at one number of ranks, in samples per rank.

    Attributes:
        fits: The largest batch known to fit; 0: not even one sample.
        too_large: The smallest batch known not to fit.
    """

    suite: str
    case: str
    world_size: int = Field(ge=1)
    fits: int = Field(ge=0, lt=LARGE)
    too_large: int = Field(ge=1, lt=LARGE)

    def notice(self, with_suite: bool = False) -> str:
        """Return the result as a sentence for people; name the suite where a run has several."""
        suite = f"{self.suite}: " if with_suite else ""
        return (
            f"{suite}{self.case}, N = {self.world_size}: {self.fits} samples per rank fit, "
            f"{self.too_large} do not"
        )


_NOTICE = re.compile(r"(.+), N = (\d+): (\d+) samples per rank fit, (\d+) do not")


def from_notices(notices: Iterable[str], plan: Sequence[Cell]) -> list[LargestBatch]:
    """Return the largest batches of a run that stored them as notices only, as old versions did.

    Those notices do not name the suite. Where several suites of the plan have the same case at the
    same N, it is not known whose batch it is, and it is left out.
    """
    suites: dict[tuple[str, int], set[str]] = {}
    for cell in plan:
        suites.setdefault((cell.case, cell.world_size), set()).add(cell.suite)
    found = []
    for match in filter(None, map(_NOTICE.fullmatch, notices)):
        with suppress(ValueError):  # numbers that no run has: not scalebench's own notice
            case, *numbers = match.groups()
            world_size, fits, too_large = map(int, numbers)
            owners = suites.get((case, world_size), set())
            if len(owners) == 1:
                (suite,) = owners
                found.append(
                    LargestBatch(
                        suite=suite,
                        case=case,
                        world_size=world_size,
                        fits=fits,
                        too_large=too_large,
                    )
                )
    return found
