"""The times of a row's recovery by name, for readers of single numbers: gate and exports."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from scalebench.records.rows.recovery import RecoveryFigures
from scalebench.stats import Estimate

Quantity = Literal["checkpoint_stall_s", "checkpoint_durable_s", "checkpoint_cost_s", "restart_s"]

STALL: Quantity = "checkpoint_stall_s"
RESTART: Quantity = "restart_s"

ABOUT: Mapping[Quantity, str] = {
    "checkpoint_stall_s": "Time in which a checkpoint lets no rank train.",
    "checkpoint_durable_s": "From the start of a save until the checkpoint is on the disk.",
    "checkpoint_cost_s": "What a checkpoint costs training: its stall, and slower steps.",
    "restart_s": "From a failure until the state is loaded again.",
}


@dataclass(frozen=True)
class RecoveryTime:
    """One time of a row.

    Attributes:
        quantity: What it is.
        labels: Of which way to save, or of which failure and who started the ranks again.
        estimate: In seconds; its ``n`` counts saves or failures.
    """

    quantity: Quantity
    labels: Mapping[str, str]
    estimate: Estimate = field(compare=False)

    @property
    def name(self) -> str:
        """Its name among all of a row, for example ``kill_torchrun_restart_s``."""
        return "_".join([*self.labels.values(), self.quantity]).replace("-", "_")


def times_of(figures: RecoveryFigures | None) -> Iterator[RecoveryTime]:
    """Yield every time of a row; none where nothing was saved."""
    if figures is None:
        return
    for save in figures.saves:
        method = {"method": save.method}
        yield RecoveryTime("checkpoint_stall_s", method, save.stall_s)
        yield RecoveryTime("checkpoint_durable_s", method, save.durable_s)
        yield RecoveryTime("checkpoint_cost_s", method, save.cost_s)
    for failure in figures.failures:
        who = {"failure": failure.kind, "restarted_by": failure.restarted_by}
        yield RecoveryTime("restart_s", who, failure.restart_s)
