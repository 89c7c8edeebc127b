"""Memory of a rank on a mesh: what one process would hold, and what each axis takes off it."""

from scalebench.records.rows.base import RowPart


class AxisSaving(RowPart):
    """What one dimension of a mesh takes off a rank's peak, bytes, by its law.

    Attributes:
        axis: Name of the dimension.
        num_ranks: Along it.
        state_bytes: Of parameters, gradients at the peak and the optimizer's state.
        activations_bytes: Of activations.
    """

    axis: str
    num_ranks: int
    state_bytes: int
    activations_bytes: int

    @property
    def total_bytes(self) -> int:
        """Both together."""
        return self.state_bytes + self.activations_bytes


class MemoryByAxis(RowPart):
    """A rank's predicted peak as what is left of one process, bytes.

    Attributes:
        one_process_bytes: Predicted peak of one process that trains on the whole batch.
        savings: What each dimension takes off what those before it leave, in order.
        rank_bytes: What is left.
    """

    one_process_bytes: int
    savings: list[AxisSaving]
    rank_bytes: int
