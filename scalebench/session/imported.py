"""An imported run: logs of jobs that ran elsewhere, read and stored as a run like any other."""

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from scalebench import __version__
from scalebench.analysis.run import StoredRun
from scalebench.records.files import write_checked
from scalebench.records.folder import point_latest_at
from scalebench.records.run import RunInfo, RunSpec
from scalebench.records.summary import ImportedRun
from scalebench.session.machine.gpu_locks import begin_in
from scalebench.session.storing.anonymise import Cleaner
from scalebench.session.storing.finish import Run, finish
from scalebench.spec import StepPlan


def store_imported(imported: ImportedRun, command: Sequence[str], out: Path | None) -> Run:
    """Store what was read of logs as a run, and work out its summary.

    Raises:
        UsageError: ``out`` holds something already.
        EnvironmentUnfit: It cannot be written.
    """
    started = datetime.now(UTC)
    logs = imported.logs
    digest = hashlib.sha256(imported.model_dump_json().encode()).hexdigest()[:7]
    run_id = f"{started:%Y%m%dT%H%M%SZ}_imported_{digest}"
    formats = list(dict.fromkeys(log.format for log in logs))
    info = RunInfo(
        run_id=run_id,
        version=__version__,
        created=started.isoformat(timespec="seconds"),
        command=list(command),
        spec=RunSpec(
            suites=(),
            world_sizes=tuple(sorted({log.world_size for log in logs})),
            device="cuda",
            scaling="strong",
            launcher="imported",
            threads=1,
            steps=StepPlan(),
            repeats=1,
        ),
        environment=imported.environment(),
        plan=[],
        notices=[
            f"Read of {len(logs)} log{'s' if len(logs) > 1 else ''} ({', '.join(formats)}); "
            "nothing was measured here."
        ],
        sealed=True,
    )
    cleaner = Cleaner()
    info, imported = cleaner.model(info), cleaner.model(imported)
    with begin_in(out, run_id) as paths:
        write_checked(paths.imported_json, imported)
        write_checked(paths.run_json, info)
        run = finish(StoredRun(paths, info, {}, imported=imported), "complete")
    if out is None:
        point_latest_at(run.paths.root)
    return run
