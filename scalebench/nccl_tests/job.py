"""What a log tells about a job before its table: the test, the versions, the ranks."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rank:
    """One line of the list of devices; ``group`` is the communicator's colour."""

    rank: int
    group: int
    host: str
    device: str


@dataclass
class Job:
    """One start of a test.

    Attributes:
        op: The operation its header names; None: not named.
        commanded: The operations that command lines before it name.
        ranks_per_process: Threads times devices of each; None: not told.
        ranks: The list of devices.
        nccl_version: See `Table`.
        nccl_tests_version: See `Table`.
        has_table: Whether its table has begun.
    """

    op: str | None = None
    commanded: set[str] = field(default_factory=set)
    ranks_per_process: int | None = None
    ranks: list[Rank] = field(default_factory=list)
    nccl_version: str | None = None
    nccl_tests_version: str | None = None
    has_table: bool = False

    @property
    def has_header(self) -> bool:
        """Whether its parameters, its ranks or its table have been seen."""
        return self.has_table or self.ranks_per_process is not None or bool(self.ranks)

    def world_size(self) -> tuple[int | None, str | None]:
        """Return the ranks of the communicator that the table is about, or why it is not known."""
        if not self.ranks:
            return None, "the log does not list the ranks"
        numbers = [rank.rank for rank in self.ranks]
        number, times = Counter(numbers).most_common(1)[0]
        if times > 1:
            return None, (
                f"rank {number} is listed {times} times: several jobs wrote into one "
                "log, as mpirun does when nccl-tests is built without MPI"
            )
        if sorted(numbers) != list(range(len(numbers))):
            return None, f"the list of ranks has gaps: {len(numbers)} lines up to {max(numbers)}"
        if self.ranks_per_process and len(numbers) % self.ranks_per_process:
            return None, (
                f"the list of ranks is cut off: {len(numbers)} lines, {self.ranks_per_process} for "
                "each process"
            )
        return len(self._group()), None

    def _group(self) -> list[Rank]:
        first = min(self.ranks, key=lambda rank: rank.rank)
        return [rank for rank in self.ranks if rank.group == first.group]

    @property
    def is_split(self) -> bool:
        """Whether several groups ran at once."""
        return len({rank.group for rank in self.ranks}) > 1

    @property
    def hosts(self) -> tuple[str, ...]:
        """The hosts of the table's group, each once."""
        return tuple(dict.fromkeys(rank.host for rank in self._group())) if self.ranks else ()

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the devices of the table's group, each once."""
        return tuple(dict.fromkeys(rank.device for rank in self._group())) if self.ranks else ()


def version_of_code(code: int) -> str | None:
    """Return ``2.21.5`` for NCCL's number of a version, 22105 (2708 up to 2.8); None: no version.

    Source: ``NCCL_VERSION`` in nccl.h.
    """
    if code < 1000:
        return None
    major, rest = divmod(code, 10000 if code >= 10000 else 1000)
    return f"{major}.{rest // 100}.{rest % 100}"
