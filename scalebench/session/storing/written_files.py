"""Files in the working folder that several launches of a user's script have written.

Every launch writes to the same place then: the last one's checkpoint is what is left, and a launch
may read what another one wrote. Only the working folder and the folders in it are looked at.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence, Set
from contextlib import suppress
from pathlib import Path

from scalebench.records.measured.rank import RankRecord
from scalebench.spec import Cell
from scalebench.spec.script import ScriptTarget

MOST_FILES = 5000
"""Of a folder with more, nothing is said: looking would take too long."""

MOST_NAMED = 3
DEPTH = 3

States = dict[str, tuple[int, int]]
"""Path below the folder → when it was changed (ns), and its size."""


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
