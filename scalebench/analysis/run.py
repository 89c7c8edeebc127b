"""A run as it is stored: read whole, and checked."""

import json
import re
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from scalebench.errors import UsageError
from scalebench.records.paths import RunPaths
from scalebench.records.run import CELL_FORMAT, RUN_FORMAT, CellResult, RunInfo, contradiction
from scalebench.records.summary import ImportedRun

if TYPE_CHECKING:
    from scalebench.costmodel.links.profile import LinkProfile
from scalebench.records.files import open_regular, read_checked, read_text
from scalebench.records.folder import is_being_worked_on


@dataclass
class StoredRun:
    """A run as it stands on disk, however far it came.

    Attributes:
        damaged: File name → why it could not be read; such cells count as not there.
        unsaved: Launches whose result is in ``results`` and not yet in the folder.
        link: What the run's links cost, as calibrated in the run; None: see
            ``link_unavailable``.
        imported: What was read of logs, in place of launches; None: it is no imported run.
    """

    paths: RunPaths
    info: RunInfo
    results: dict[str, CellResult]
    damaged: dict[str, str] = field(default_factory=dict)
    unsaved: set[str] = field(default_factory=set)
    link: "LinkProfile | None" = None
    link_unavailable: str = "no link was calibrated in this run"
    imported: ImportedRun | None = None


def read_info(root: Path) -> RunInfo:
    """Read what a run folder says of its run, without the results.

    Raises:
        UsageError: It is not a run folder, or its ``run.json`` cannot be used.
    """
    paths = RunPaths(root)
    if not root.exists():
        raise UsageError(f"There is no run folder {root}. `scalebench list` lists the runs here.")
    if not paths.run_json.is_file():
        raise UsageError(
            f"{root} is not a run folder: no run.json in it. `scalebench list` lists the runs here."
        )
    _check_format(paths.run_json, RUN_FORMAT)
    info = read_checked(paths.run_json, RunInfo, required=False)
    if info.sealed:
        read_checked(paths.run_json, RunInfo, required=True)
    return info


def load_run(root: Path) -> StoredRun:
    """Read a run folder, however far the run came.

    A cell that cannot be read is set aside by name; the rest is used.

    Raises:
        UsageError: It is not a run folder, its ``run.json`` cannot be used, or it was complete and
            has lost all results.
    """
    paths, info = RunPaths(root), read_info(root)
    if info.status == "running" and not is_being_worked_on(paths):
        info = info.model_copy(update={"status": "interrupted"})  # killed: it could not say so
    run = StoredRun(paths, info, {})
    planned = {cell.id: cell for cell in run.info.plan}
    for name, path in paths.stored_cells().items():
        try:
            _check_format(path, CELL_FORMAT)
            result = read_checked(path, CellResult, run.info.sealed)
            if result.cell.id != name or name not in planned:
                raise UsageError(f"{path} is not a cell of this run.")
            wrong = contradiction(result, planned[name])
            if wrong:
                raise UsageError(f"{path} is inconsistent: {wrong}.")
        except UsageError as error:
            run.damaged[path.name] = str(error)
        else:
            run.results[name] = result
    _note_missing(run)
    _read_link(run)
    if paths.imported_json.exists():
        run.imported = read_checked(paths.imported_json, ImportedRun, info.sealed)
    return run


def _note_missing(run: StoredRun) -> None:
    """Set results aside that a complete run had, and that are no longer there.

    Raises:
        UsageError: None of them is there.
    """
    if run.info.status != "complete":
        return
    launched = [cell.id for cell in run.info.plan if not cell.skip_reason]
    there = run.paths.stored_cells()
    missing = [run.paths.cell(name).name for name in launched if name not in there]
    if launched and len(missing) == len(launched):
        raise UsageError(
            f"{run.paths.cells} has none of the {len(launched)} results of this complete run. Put "
            "the folder back; its summary and page are as they were."
        )
    run.damaged |= {name: f"it is missing from {run.paths.cells}." for name in missing}


def _read_link(run: StoredRun) -> None:
    if run.paths.link_profile.exists():
        from scalebench.costmodel.links.profile import LinkProfile  # half a second that few need

        try:
            run.link = read_checked(run.paths.link_profile, LinkProfile, run.info.sealed)
        except UsageError as error:
            run.damaged[run.paths.link_profile.name] = run.link_unavailable = str(error)


_FORMAT_FIRST = re.compile(r'\s*\{\s*"format"\s*:\s*"([^"\\]*)"')
"""How every stored record begins: a large one is told without being read twice."""


def _check_format(path: Path, expected: str) -> None:
    if _first_format(path) == expected:
        return
    try:
        content = json.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path} is damaged: {error}.") from error
    found = content.get("format") if isinstance(content, dict) else None
    if found != expected:
        raise UsageError(f"{path} has format {found!r}; this version reads {expected!r}.")


def _first_format(path: Path) -> str | None:
    """Return the format that a file's first bytes name; None: they do not, or it is unreadable."""
    try:
        with open(open_regular(path), "rb") as file:
            begin = file.read(200)
        if path.suffix == ".gz":
            begin = zlib.decompressobj(zlib.MAX_WBITS | 16).decompress(begin, 200)
        found = _FORMAT_FIRST.match(begin.decode("utf-8", "replace"))
    except (OSError, UsageError, zlib.error):
        return None
    return found[1] if found else None
