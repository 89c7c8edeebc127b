"""What a log of nccl-tests tells: points, and the tables they stand in."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

OpSource = Literal["test's name", "command line", "columns", "caller"]


@dataclass(frozen=True)
class Point:
    """One measurement: an operation at one size, out of place or in place.

    Attributes:
        size_bytes: The full size, as nccl-tests counts it: of all-gather the gathered one.
        count: The count argument of the call, in elements: of all-gather one rank's share.
        dtype: As torch spells it.
        redop: ``sum``, ``prod``, ``max``, ``min``, ``avg`` or ``mulsum``; None: the operation
            reduces nothing.
        root: The root's rank; None: the operation has none.
        in_place: Whether input and output were the same memory.
        time_s: Average time of the operation; None: the log has the call's CPU time instead.
        cpu_time_s: Average time of the call on the host, where it was asked for.
        algbw_byte_per_s: Size / time; None: a hypercube whose log tells neither time nor algbw.
        busbw_byte_per_s: algbw times the operation's factor.
        num_wrong: Wrong elements; None: not checked, or an older version that does not count.
        largest_deviation: From the right result, as older versions tell it; else None.
        place: Where it stands in the file.
    """

    size_bytes: int
    count: int
    dtype: str
    redop: str | None
    root: int | None
    in_place: bool
    time_s: float | None
    cpu_time_s: float | None
    algbw_byte_per_s: float | None
    busbw_byte_per_s: float
    num_wrong: int | None
    largest_deviation: float | None
    place: str


@dataclass(frozen=True)
class Table:
    """One run of a test.

    Attributes:
        op: As scalebench names it (``all_reduce``), or ``hypercube``: an all-gather that
            nccl-tests builds from sends and receives.
        op_source: What tells the operation.
        points: In the order of the file.
        world_size: Ranks of the communicator; None: not known.
        world_size_reason: Why the world size is not known; None: it is.
        hosts: Names of the hosts, each once, in the order of the ranks.
        devices: Names of the devices, each once.
        nccl_version: Of the library in use, ``2.21.5``; None: the log does not tell.
        nccl_tests_version: None: the log does not tell (older versions).
        average_busbw_byte_per_s: As the table's footer has it; None: the footer is missing.
        num_out_of_bounds: Measurements with wrong results, as the footer counts them.
        notices: What a reader of the points should know.
    """

    op: str
    op_source: OpSource
    points: tuple[Point, ...]
    world_size: int | None
    world_size_reason: str | None
    hosts: tuple[str, ...]
    devices: tuple[str, ...]
    nccl_version: str | None
    nccl_tests_version: str | None
    average_busbw_byte_per_s: float | None
    num_out_of_bounds: int | None
    notices: tuple[str, ...]


@dataclass(frozen=True)
class Log:
    """Everything that one file holds; at least one table with at least one point."""

    path: Path
    tables: tuple[Table, ...]

    @property
    def points(self) -> tuple[Point, ...]:
        """The points of all tables, in the order of the file."""
        return tuple(point for table in self.tables for point in table.points)

    @property
    def notices(self) -> tuple[str, ...]:
        """The notices of all tables."""
        return tuple(notice for table in self.tables for notice in table.notices)
