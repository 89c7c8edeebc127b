"""Races as they were asked for: another target, fewer samples with ``--quick``."""

from collections.abc import Sequence

from scalebench.errors import UsageError
from scalebench.session.plan.request import Request
from scalebench.spec import Suite
from scalebench.spec.race import Race

QUICK_EVALUATIONS = 4


def check_races(request: Request, suites: Sequence[Suite]) -> None:
    """Raise UsageError for options that contradict a race, or need one."""
    races = [suite.name for suite in suites if suite.race is not None]
    if request.target_loss is not None and not races:
        raise UsageError(
            f"--target-loss {request.target_loss:g} needs a suite that is a race, and there is no "
            "race among the given suites. Run batch, or a suite with race=Race(...)."
        )
    if not races:
        return
    if request.steps is not None:
        raise UsageError(
            f"--steps {request.steps}: every case of suite {races[0]} trains on the samples that "
            "its race says. Leave out --steps."
        )
    if request.batch_size is not None:
        raise UsageError(
            f"--batch-size {request.batch_size}: the cases of suite {races[0]} race with the "
            "batches that it gives them. Leave out --batch-size."
        )
    if request.max_batch:
        raise UsageError(
            f"--max-batch changes batches, and the cases of suite {races[0]} race with those that "
            "it gives them. Leave out --max-batch."
        )


def race_of(suite: Suite, request: Request) -> Race | None:
    """Return a suite's race with the request's target; a quick one ends after few evaluations."""
    race = suite.race
    if race is None:
        return None
    changes: dict[str, float | int | None] = {}
    if request.target_loss is not None:
        changes["target_loss"] = request.target_loss
    quick_samples = QUICK_EVALUATIONS * race.evaluate_every
    if request.quick and race.samples > quick_samples:
        changes |= {"samples": quick_samples, "target_after": None}
    return race.model_copy(update=changes)
