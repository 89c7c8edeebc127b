"""What a row says of its communication: operations, and who came last.

`scalebench trace` has them, too, and starts without scipy: nothing here imports an estimate.
"""

from pydantic import FiniteFloat

from scalebench.records.rows.base import RowPart


class OperationFigures(RowPart):
    """Operations of one sort, per step.

    Attributes:
        kind: For example ``all_reduce``.
        ordinal: Which operation of a step; for DDP the bucket. None: all of the kind.
        phase: In which most of them were asked for.
        count: Operations per step.
        num_bytes: Bytes per step, full sizes; None: a size is not known.
        total_s: Union of their intervals, seconds per step.
        exposed_s: The part of it in which the rank did not compute.
        hidden_s: The rest.
    """

    kind: str
    ordinal: int | None
    phase: str
    count: FiniteFloat
    num_bytes: FiniteFloat | None
    total_s: FiniteFloat
    exposed_s: FiniteFloat
    hidden_s: FiniteFloat


class AxisFigures(RowPart):
    """Operations along one dimension of the mesh, per step.

    Attributes:
        axis: Name of the dimension.
        num_ranks: Ranks of a group along it.
        count: Operations per step.
        num_bytes: Bytes per step, full sizes; None: a size is not known.
        wire_bytes: Bytes that a rank sends for it by the ring's law; None: likewise.
        predicted_wire_bytes: The same by the strategy's law; None: there is none.
        total_s: Union of their intervals, seconds per step.
        exposed_s: The part of it in which the rank did not compute.
        wait_s: The part of that in which it waited for other ranks; None: it is not known.
        groups: The ranks of every group along it; None: not recorded.
    """

    axis: str
    num_ranks: int
    count: FiniteFloat
    num_bytes: FiniteFloat | None
    wire_bytes: FiniteFloat | None
    predicted_wire_bytes: FiniteFloat | None = None
    total_s: FiniteFloat
    exposed_s: FiniteFloat
    wait_s: FiniteFloat | None
    groups: list[list[int]] | None = None

    @property
    def wire_byte_per_s(self) -> float | None:
        """Bytes that a rank sends along it in a second of its operations; None: not known."""
        if self.wire_bytes is None or self.total_s <= 0:
            return None
        return self.wire_bytes / self.total_s


class Straggler(RowPart):
    """How often one rank came last, and by how much.

    Attributes:
        count: Matched operations to which it came last.
        share: The same of all matched operations; the shares of all ranks sum to 1.
        median_late_s: How long after the first, where it was the last; seconds.
        longest_run: Most operations in a row to which it came last.
    """

    rank: int
    count: int
    share: FiniteFloat
    median_late_s: FiniteFloat
    longest_run: int

    def stands_out(self, num_ranks: int) -> bool:
        """Tell whether this is more than taking turns: half as often again as by chance."""
        return self.share >= 1.5 / num_ranks
