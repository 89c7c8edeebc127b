"""What a row says of its recovery, made by hand."""

from typing import Any

from scalebench.records.rows.race import (
    FailureFigures,
    RecoveryFigures,
    RestoreFigures,
    SaveFigures,
)
from scalebench.records.summary import Row
from tests.builders.summaries import estimate, make_plain, make_row


def save(method: str, cost_s: float, **changes: Any) -> SaveFigures:
    """One way to save: half of its cost is its stall, half the slower steps beside it."""
    times = {"stall_s": 0.5, "durable_s": 2.0, "slower_s": 0.5, "cost_s": 1.0}
    fields = {name: estimate(part * cost_s, 0.05, 5) for name, part in times.items()}
    fields |= {"bandwidth_byte_per_s": estimate(50e6, 0.01, 5)}
    fields |= {"bytes": 5_300_000, "steps_beside": 2.0}
    return SaveFigures(method=method, **{**fields, **changes})


def restore(saved_by: int, equal: bool | None) -> RestoreFigures:
    times = {"load_s": 0.12, "first_step_s": 0.05, "num_tensors": 122}
    return RestoreFigures(
        method="sharded", saved_world_size=saved_by, continues_equal=equal, **times
    )


def rows_with(
    saves: list[SaveFigures], restores: list[RestoreFigures], file_system: str = "ext4"
) -> list[Row]:
    """The plain row, and DDP on two ranks that saved and restored."""
    figures = RecoveryFigures(file_system=file_system, saves=saves, restores=restores)
    return [make_plain(), make_row("ddp", 2).model_copy(update={"recovery": figures})]


def recovery(stall_s: float = 0.1, restart_s: float = 2.0, spread: float = 0.01) -> RecoveryFigures:
    """A row that was saved with ``async``, and continued after a kill under torchrun."""
    stalled = save("async", stall_s, stall_s=estimate(stall_s, spread, 5), slower_s=None)
    times = {
        "phases_s": {"notice": estimate(0.1, 0.01, 5)},
        "restart_s": estimate(restart_s, spread, 5),
        "total_s": estimate(restart_s + 1, 0.01, 5),
    }
    failure = FailureFigures(kind="kill", restarted_by="torchrun", lost_steps=2.0, **times)
    return RecoveryFigures(saves=[stalled], failures=[failure])
