"""What a row says of its recovery, made by hand."""

from typing import Any

from scalebench.records.rows.recovery import (
    FailureFigures,
    RecoveryFigures,
    RestoreFigures,
    SaveFigures,
)
from scalebench.records.summary import Row
from scalebench.stats import Estimate
from tests.builders.summaries import make_plain, make_row


def near(value: float, spread: float = 0.01, n: int = 5) -> Estimate:
    """An estimate whose interval reaches ``spread`` to either side, as a ratio."""
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=n)


def save(method: str, cost_s: float, **changes: Any) -> SaveFigures:
    """One way to save: half of its cost is its stall, half the slower steps beside it."""
    fields = {
        "stall_s": near(cost_s / 2, 0.05),
        "durable_s": near(2 * cost_s, 0.05),
        "bytes": 5_300_000,
        "bandwidth_byte_per_s": near(50e6),
        "steps_beside": 2.0,
        "slower_s": near(cost_s / 2, 0.05),
        "cost_s": near(cost_s, 0.05),
    }
    return SaveFigures(method=method, **{**fields, **changes})


def restore(saved_by: int, equal: bool | None) -> RestoreFigures:
    return RestoreFigures(
        method="sharded",
        saved_world_size=saved_by,
        load_s=0.12,
        first_step_s=0.05,
        num_tensors=122,
        continues_equal=equal,
    )


def rows_with(
    saves: list[SaveFigures], restores: list[RestoreFigures], file_system: str = "ext4"
) -> list[Row]:
    """The plain row, and DDP on two ranks that saved and restored."""
    figures = RecoveryFigures(file_system=file_system, saves=saves, restores=restores)
    return [make_plain(), make_row("ddp", 2).model_copy(update={"recovery": figures})]


def recovery(stall_s: float = 0.1, restart_s: float = 2.0, spread: float = 0.01) -> RecoveryFigures:
    """A row that was saved with ``async``, and continued after a kill under torchrun."""
    stalled = save("async", stall_s, stall_s=near(stall_s, spread), slower_s=None)
    failure = FailureFigures(
        kind="kill",
        restarted_by="torchrun",
        phases_s={"notice": near(0.1)},
        restart_s=near(restart_s, spread),
        total_s=near(restart_s + 1),
        lost_steps=2.0,
    )
    return RecoveryFigures(saves=[stalled], failures=[failure])
