"""What a row says of its recovery, made by hand."""

from scalebench.records.rows.recovery import FailureFigures, RecoveryFigures, SaveFigures
from scalebench.stats import Estimate


def near(value: float, spread: float = 0.01, n: int = 5) -> Estimate:
    """An estimate whose interval reaches ``spread`` to either side, as a ratio."""
    return Estimate(value=value, low=value * (1 - spread), high=value * (1 + spread), n=n)


def recovery(stall_s: float = 0.1, restart_s: float = 2.0, spread: float = 0.01) -> RecoveryFigures:
    """A row that was saved with ``async``, and continued after a kill under torchrun."""
    save = SaveFigures(
        method="async",
        stall_s=near(stall_s, spread),
        durable_s=near(2 * stall_s),
        bytes=1000,
        bandwidth_byte_per_s=near(1e6),
        steps_beside=0.0,
        cost_s=near(stall_s),
    )
    failure = FailureFigures(
        kind="kill",
        restarted_by="torchrun",
        phases_s={"notice": near(0.1)},
        restart_s=near(restart_s, spread),
        total_s=near(restart_s + 1),
        lost_steps=2.0,
    )
    return RecoveryFigures(saves=[save], failures=[failure])
