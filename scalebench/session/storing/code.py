"""The user's own code that a run trains: its files, and whether they are what they were.

A run that goes on must not measure another script into its rows. Of a script or a module this is
the file that is named; what that imports is not looked at.
"""

import hashlib
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scalebench.analysis.run import read_info
from scalebench.errors import UsageError
from scalebench.records.run import CodeFile, RunInfo
from scalebench.records.storage.files import open_regular
from scalebench.session.storing.anonymise import with_script
from scalebench.spec import Cell
from scalebench.spec.presets import HF, NAMED, CustomTarget, hf_configuration
from scalebench.spec.script import ScriptTarget


def code_of(cells: Iterable[Cell]) -> list[CodeFile]:
    """Return the files of the users' scripts and workloads among some cells, as they are now.

    Found from this folder, in which they also run. What cannot be found is left out.
    """
    targets = dict.fromkeys(cell.workload for cell in cells)
    files = {name: path for target in targets for name, path in _files(target)}
    return [_seen(name, path) for name, path in files.items()]


def _files(target: object) -> Iterator[tuple[str, Path]]:
    """Yield what a script or workload is called, and its file, if that is found."""
    found: Path | None
    if isinstance(target, CustomTarget) and target.module == NAMED:
        of_hf = target.name.startswith(HF)
        name, found = target.name, hf_configuration(target.name)[0] if of_hf else None
    elif isinstance(target, CustomTarget):
        name, found = target.module, _file_of_module(target.module, "__init__.py", sys.path)
    elif not isinstance(target, ScriptTarget):
        return
    elif target.module:
        own = os.path.realpath(target.python) == os.path.realpath(sys.executable)
        folders = sys.path if own else []
        name, found = target.shown, _file_of_module(target.program, "__main__.py", folders)
    else:
        name, found = target.shown, Path(target.program)
    if found is not None and os.path.isfile(found):
        yield name, found


def _file_of_module(name: str, of_package: str, folders: Sequence[str]) -> Path | None:
    """Return the file of a module that is looked for here first; None: it is none of Python's.

    `importlib` would run the packages around it.
    """
    for folder in (os.getcwd(), *folders):
        place = Path(folder, *name.split("."))
        for file in (place / of_package, place.with_name(f"{place.name}.py")):
            if os.path.isfile(file):
                return file
    return None


def _seen(name: str, path: Path) -> CodeFile:
    with open(open_regular(path), "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return CodeFile(name=name, path=os.path.abspath(path), sha256=digest)


def folder_of(code: Sequence[CodeFile]) -> str | None:
    """Return the folder in which code runs: this one. None: there is no code."""
    return os.getcwd() if code else None


def go_where_started(
    root: Path, changed_script: bool = False, script: ScriptTarget | None = None
) -> Path:
    """Go to the folder in which the code of a run was started; return the run's folder from there.

    Raises:
        UsageError: There is no such run, or its code is not what it was.
    """
    info = with_script(read_info(root), script, root)
    if not _is_here(info.folder):
        root = root.resolve()
        os.chdir(str(info.folder))
    check_code(info, changed_script)
    return root


def _is_here(folder: str | None) -> bool:
    """Tell whether a run goes on in this folder: also where its own is not known, or is gone."""
    known = folder is not None and os.path.isdir(folder)
    return not known or os.path.samefile(str(folder), os.getcwd())


class Again(NamedTuple):
    """The code of a run that goes on, and what is to be said of it."""

    code: list[CodeFile]
    notices: list[str]


def check_code(info: RunInfo, changed_script: bool) -> Again:
    """Check that the code of a run is still what it was.

    Args:
        info: Of the run; older versions stored nothing of its code.
        changed_script: Whether it may have changed.

    Raises:
        UsageError: It has changed, is gone, or was started in another folder.
    """
    if not _is_here(info.folder):
        raise UsageError(
            f"This run was started in {info.folder}, where its script runs. Start "
            "`scalebench run --resume` there."
        )
    now = {file.name: file for file in code_of(info.plan)}
    for file in info.code:
        if file.name not in now:
            raise UsageError(f"{file.path} is gone, and the run needs it. Put it back.")
    changed = [now[f.name] for f in info.code if f.sha256 != now[f.name].sha256]
    if changed and not changed_script:
        raise UsageError(
            f"{changed[0].path} has changed since the run was started: its rows would be of two "
            "versions. Put the old file back, start a new run, or add --changed-script."
        )
    moment = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    return Again(
        [now[file.name] for file in info.code],
        [f"{f.name} was changed: launches from {moment} on ran the new version" for f in changed],
    )
