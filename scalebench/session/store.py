"""What a run stores while it goes on, without names where it is to have none."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from scalebench.analysis.run import StoredRun
from scalebench.costmodel.links.profile import LinkProfile
from scalebench.launch.base import Launcher
from scalebench.records.files import write_checked
from scalebench.records.paths import RunPaths
from scalebench.records.run import CellResult, RunInfo, RunSpec
from scalebench.session.anonymise import Anonymiser, anonymise_files, names_of_this_machine
from scalebench.session.recovery.directory import directories_of
from scalebench.spec import Cell


class RunStore:
    """Keeps a run in memory and on disk the same.

    Args:
        run: As it stands in its folder.
        anonymiser: Takes names out of what is stored; None: they stay.
        checkpoints: Suite → directory for its checkpoints, of which `run` may not have the name.
    """

    def __init__(
        self,
        run: StoredRun,
        anonymiser: Anonymiser | None,
        checkpoints: Mapping[str, Path] | None = None,
    ) -> None:
        self.run = run
        self.anonymiser = anonymiser
        self.checkpoints = checkpoints or {}
        run.paths.cells.mkdir(exist_ok=True)

    @classmethod
    def create(
        cls,
        paths: RunPaths,
        info: RunInfo,
        link: LinkProfile | None,
        anonymiser: Anonymiser | None,
    ) -> "RunStore":
        """Store a new run, and the link profile that it was given."""
        checkpoints = directories_of(info.plan)
        info = info if anonymiser is None else anonymiser.model(info)
        store = cls(StoredRun(paths, info, {}, link=link), anonymiser, checkpoints)
        write_checked(paths.run_json, info)
        if link is not None:
            write_checked(paths.link_profile, link)
        return store

    def extend_plan(self, cells: Sequence[Cell]) -> None:
        """Add cells to the plan, and store it."""
        info = self.run.info
        self.run.info = info.model_copy(update={"plan": [*info.plan, *cells]})
        write_checked(self.run.paths.run_json, self.run.info)

    def add_notice(self, text: str) -> None:
        """Have the run say something, once; it is stored with the run's status."""
        notice = text if self.anonymiser is None else self.anonymiser.text(text)
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
        run, anonymiser = self.run, self.anonymiser
        kept = list(results) if anonymiser is None else [anonymiser.model(r) for r in results]
        for result in kept:
            run.unsaved.add(result.cell.id)
            run.results[result.cell.id] = result
        if anonymiser is not None:
            for result in kept:
                anonymise_files(run.paths.logs(result.cell.id), anonymiser)
        self.keep_unsaved()
        return kept

    def keep_unsaved(self) -> None:
        """Store every result whose storing did not come to its end."""
        run = self.run
        for cell_id in sorted(run.unsaved & run.results.keys()):
            write_checked(run.paths.cell(cell_id), run.results[cell_id], indent=None)
            run.damaged.pop(run.paths.cell(cell_id).name, None)
            run.unsaved.discard(cell_id)

    def anonymise_calibration(self) -> None:
        """Take the names out of the run's own calibration."""
        run = self.run
        if self.anonymiser is not None and run.link is not None:
            run.link = self.anonymiser.model(run.link)
            write_checked(run.paths.link_profile, run.link)
            anonymise_files(run.paths.logs("calibration"), self.anonymiser)


def anonymiser_for(spec: RunSpec, launcher: Launcher) -> Anonymiser | None:
    """Return what takes names out of a run, those of its other hosts too; None: they stay."""
    if not spec.anonymise:
        return None
    nodes = launcher.world.nodes[1:] if launcher.world is not None else ()
    others = {node.host: f"<host {number}>" for number, node in enumerate(nodes, 1)}
    return Anonymiser(names_of_this_machine(others))
