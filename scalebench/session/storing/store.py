"""What a run stores while it goes on: without secrets, and without names if it is anonymous."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.launch.base import Launcher
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo
from scalebench.records.storage.files import write_checked
from scalebench.session.recovery.directory import directories_of
from scalebench.session.storing.anonymise import Cleaner, names_of_this_machine, script_of
from scalebench.spec import Cell


class RunStore:
    """Keeps a run in memory and on disk the same.

    What is launched is in memory alone as it was given; what is stored and shown is `as_stored`.

    ``cleaner`` takes out of it what is not stored; None: what looks like a secret. ``checkpoints``:
    suite → directory.
    """

    def __init__(
        self,
        run: StoredRun,
        cleaner: Cleaner | None = None,
        checkpoints: Mapping[str, Path] | None = None,
    ) -> None:
        self.run = run
        self.cleaner = cleaner or Cleaner()
        self.checkpoints = checkpoints or {}
        self._kept = dict(run.results)
        run.paths.cells.mkdir(exist_ok=True)

    @classmethod
    def create(
        cls,
        paths: RunPaths,
        info: RunInfo,
        link: LinkProfile | None,
        cleaner: Cleaner | None = None,
    ) -> "RunStore":
        """Store a new run, and the link profile that it was given."""
        store = cls(StoredRun(paths, info, {}, link=link), cleaner, directories_of(info.plan))
        write_checked(paths.run_json, store.cleaner.model(info))
        if link is not None:
            write_checked(paths.link_profile, store.cleaner.model(link))
        return store

    def as_stored(self) -> StoredRun:
        """Return the run as its folder holds it."""
        run, cleaner = self.run, self.cleaner
        for name in run.results.keys() - self._kept.keys():
            self._kept[name] = cleaner.model(run.results[name])
        return StoredRun(
            run.paths,
            cleaner.model(run.info),
            {name: self._kept[name] for name in run.results},
            {name: cleaner.text(why) for name, why in run.damaged.items()},
            run.unsaved,
            None if run.link is None else cleaner.model(run.link),
            cleaner.text(run.link_unavailable),
        )

    def extend_plan(self, cells: Sequence[Cell]) -> None:
        """Add cells to the plan, and store it."""
        info = self.run.info
        self.run.info = info.model_copy(update={"plan": [*info.plan, *cells]})
        write_checked(self.run.paths.run_json, self.cleaner.model(self.run.info))

    def add_notice(self, text: str) -> None:
        """Have the run say something, once; it is stored with the run's status."""
        notice = self.cleaner.text(text)
        info = self.run.info
        if notice not in info.notices:
            self.run.info = info.model_copy(update={"notices": [*info.notices, notice]})

    def keep_result(self, result: CellResult) -> CellResult:
        """Store the result of a launch; return it as it was stored."""
        return self.keep_results([result])[0]

    def keep_results(self, results: Sequence[CellResult]) -> list[CellResult]:
        """Store the results of a launch that cells shared; return them as they were stored.

        All of them are kept in memory first: where storing ends early, none is lost.
        """
        for result in results:
            self.run.unsaved.add(result.cell.id)
            self.run.results[result.cell.id] = result
        kept = [self.cleaner.model(result) for result in results]
        self._kept |= {result.cell.id: result for result in kept}
        for result in kept:
            self.cleaner.files(self.run.paths.logs(result.cell.id))
        self.keep_unsaved()
        return kept

    def keep_unsaved(self) -> None:
        """Store every result whose storing did not come to its end."""
        run = self.run
        for cell_id in sorted(run.unsaved & self._kept.keys()):
            path, old = run.paths.cell(cell_id), run.paths.old_cell(cell_id)
            write_checked(path, self._kept[cell_id], indent=None)
            old.unlink(missing_ok=True)
            for name in (path.name, old.name):
                run.damaged.pop(name, None)
            run.unsaved.discard(cell_id)

    def clean_calibration(self) -> None:
        """Take out of the run's own calibration what is not stored."""
        run = self.run
        if run.link is not None:
            cleaned = self.cleaner.model(run.link)
            if cleaned is not run.link:
                run.link = cleaned
                write_checked(run.paths.link_profile, run.link)
            self.cleaner.files(run.paths.logs("calibration"))


def cleaner_for(info: RunInfo, launcher: Launcher) -> Cleaner:
    """Return what takes secrets out of a run, and if it is anonymous the names of its machines."""
    nodes = launcher.world.nodes[1:] if launcher.world is not None else ()
    anonymous = info.spec.anonymise
    names = names_of_this_machine([node.host for node in nodes]) if anonymous else None
    return Cleaner(names, script_of(info), info.command)
