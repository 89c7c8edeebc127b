"""The files that a user's script consists of, and the files that its launches write.

The user's own code that a run trains: its files, and whether they are what they were.

A run that goes on must not measure another script into its rows. Of a script or a module this is
the file that is named; what that imports is not looked at.

Files in the working folder that several launches of a user's script have written.

Every launch writes to the same place then: the last one's checkpoint is what is left, and a launch
may read what another one wrote. Only the working folder and the folders in it are looked at.
"""

import hashlib
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from scalebench.analysis.run import read_info
from scalebench.errors import UsageError
from scalebench.records.files import open_regular
from scalebench.records.measured.rank import RankRecord
from scalebench.records.run import CodeFile, RunInfo
from scalebench.session.storing.anonymise import with_script
from scalebench.spec import Cell
from scalebench.spec.presets import HF, NAMED, CustomTarget, hf_configuration
from scalebench.spec.script import ScriptTarget

MOST_FILES = 5000
"""Of a folder with more, nothing is said: looking would take too long."""

MOST_NAMED = 3
DEPTH = 3

States = dict[str, tuple[int, int]]
"""Path below the folder → when it was changed (ns), and its size."""


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


class WrittenFiles:
    """Looks at a folder before and after each launch.

    The script runs in ``folder``; scalebench itself writes in ``own``, the run's folder.
    """

    def __init__(self, folder: Path, own: Path) -> None:
        self.folder = folder
        self.own = own.resolve()
        self._before: States | None = None
        self._launches = Counter[str]()
        self._told: set[tuple[ScriptTarget, bool]] = set()

    def before_launch(self, cell: Cell) -> None:
        """Note how the folder is; nothing is noted of what is no script of the user's."""
        if isinstance(cell.workload, ScriptTarget):
            self._before = self._states()

    def after_launch(self, cell: Cell, ranks: Sequence[RankRecord]) -> list[str]:
        """Return what there is to say, each once in a run: see `warning`."""
        script = cell.workload
        if not isinstance(script, ScriptTarget):
            return []
        loaded = {name for rank in ranks for name in rank.facts.get("loaded", ())}
        known = [(True, sorted(loaded & set(self._launches))), (False, self._written_again())]
        told = []
        for loads, files in known:
            if files and not self._told & {(script, loads), (script, True)}:
                self._told.add((script, loads))
                told.append(warning(script, files, loads))
        return told

    def _written_again(self) -> list[str]:
        """Return the files that this launch and one before have written, by name."""
        after = self._states()
        if self._before is None or after is None:
            return []
        before = self._before
        self._launches.update(name for name, state in after.items() if before.get(name) != state)
        again = {name for name, count in self._launches.items() if count > 1}
        return sorted(again - self._of_others(again))

    def _of_others(self, names: Set[str]) -> set[str]:
        """Return the files that are open: the launch is over, so other programs write to them."""
        if not names:
            return set()
        paths = {os.path.realpath(self.folder / name): name for name in names}
        return {paths[held] for held in _open_files() if held in paths}

    def _states(self) -> States | None:
        states: States = {}
        for entry in self._files(self.folder, DEPTH):
            if len(states) >= MOST_FILES:
                return None
            try:
                seen = entry.stat()
            except OSError:  # it is gone again
                continue
            states[os.path.relpath(entry.path, self.folder)] = (seen.st_mtime_ns, seen.st_size)
        return states

    def _files(self, folder: Path, depth: int) -> Iterator["os.DirEntry[str]"]:
        try:
            entries = list(os.scandir(folder))
        except OSError:
            return
        for entry in entries:
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            path = Path(entry.path)
            if entry.is_file(follow_symlinks=False):
                yield entry
            elif depth > 1 and entry.is_dir(follow_symlinks=False) and path.resolve() != self.own:
                yield from self._files(path, depth - 1)


def _open_files() -> Iterator[str]:
    """Yield the files that the processes of this machine have open, as far as one may know."""
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            yield os.readlink(link)


def warning(script: ScriptTarget, files: list[str], loads: bool) -> str:
    """Say that launches write to the same files, or load what others have left, and what to do."""
    more = f" and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
    named = ", ".join(files[:MOST_NAMED]) + more
    if loads:
        what = f"a launch goes on from {named}, which the launch before it has left: no fair start"
    else:
        what = f"every launch writes {named}: what one has written, the next overwrites"
    return (
        f"{script.shown}: {what}. Give the script {{run_dir}} as its output folder, for example "
        "--output {run_dir}: an empty folder of each launch"
    )
