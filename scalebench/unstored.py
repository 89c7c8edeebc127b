"""What a run has measured and the disk does not take: it goes to standard output instead."""

from pathlib import Path

from scalebench.errors import EnvironmentUnfit
from scalebench.records import CellResult, Record, RunInfo
from scalebench.summary import Summary

UNSTORED_FORMAT = "scalebench.unstored/1"


class Unstored(Record):
    """What would be missing from the run's folder.

    Attributes:
        info: What was to be run: ``run.json``.
        results: Launches that are not in the folder, each as ``cells/<id>.json`` would be.
        summary: Of everything that was measured, stored or not.
    """

    format: str = UNSTORED_FORMAT
    info: RunInfo
    results: list[CellResult]
    summary: Summary


class NotStored(EnvironmentUnfit):
    """The run's folder cannot be written any more; `rest` is what it does not hold."""

    def __init__(self, root: Path, rest: Unstored, reason: str) -> None:
        super().__init__(
            f"{root} cannot be written any more: {reason}. What was stored before is kept; "
            f"{len(rest.results)} result(s) that are not there were written to standard output as "
            "JSON. Make room, and go on with --resume."
        )
        self.rest = rest
