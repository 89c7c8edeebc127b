"""The sole owner of file names: where everything in a run folder is, and where runs go."""

import os
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError

_SAFE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")

_PACKED = ".json.gz"
PERFETTO = "timeline.perfetto.json.gz"


def _checked(name: str) -> str:
    if not _SAFE.fullmatch(name) or ".." in name:
        raise ValueError(f"{name!r} is not a plain file name")
    return name


@dataclass(frozen=True)
class RunPaths:
    """The files of one run, below ``root``."""

    root: Path

    @property
    def run_json(self) -> Path:
        """What was run, where, and how far it came."""
        return self.root / "run.json"

    @property
    def cells(self) -> Path:
        """Folder of the stored cells."""
        return self.root / "cells"

    def cell(self, cell_id: str) -> Path:
        """Return the file of one stored cell."""
        return self.cells / f"{_checked(cell_id)}{_PACKED}"

    def old_cell(self, cell_id: str) -> Path:
        """Return the file of one stored cell as older versions wrote it."""
        return self.cells / f"{_checked(cell_id)}.json"

    def stored_cells(self) -> dict[str, Path]:
        """Return the file of each stored cell by the cell's id, sorted."""
        old = {path.stem: path for path in self.cells.glob("*.json")}
        new = {path.name.removesuffix(_PACKED): path for path in self.cells.glob(f"*{_PACKED}")}
        return dict(sorted((old | new).items()))

    def logs(self, cell_id: str) -> Path:
        """Return the folder of one cell's logs."""
        return self.root / "logs" / _checked(cell_id)

    @property
    def lock(self) -> Path:
        """Held by the session that works on the run."""
        return self.root / ".lock"

    @property
    def link_profile(self) -> Path:
        """What the run's own calibration of its links measured."""
        return self.root / "link-profile.json"

    @property
    def imported_json(self) -> Path:
        """What was read of the logs of jobs that ran elsewhere."""
        return self.root / "imported.json"

    @property
    def summary_json(self) -> Path:
        """The stable machine interface."""
        return self.root / "summary.json"

    @property
    def summary_csv(self) -> Path:
        """One row per case and world size."""
        return self.root / "summary.csv"

    @property
    def summary_md(self) -> Path:
        """Verdict and table for a pull request."""
        return self.root / "summary.md"

    @property
    def perfetto_json(self) -> Path:
        """The traced steps of one launch of each row, as Perfetto opens them."""
        return self.root / PERFETTO

    @property
    def report_html(self) -> Path:
        """The page."""
        return self.root / "report.html"


@dataclass(frozen=True)
class LaunchPaths:
    """The scratch folder of one launch: rendezvous and the ranks' records."""

    root: Path

    @property
    def job_json(self) -> Path:
        """The cell or the probe, for the ranks to read."""
        return self.root / "job.json"

    @property
    def store(self) -> Path:
        """The FileStore; a fresh one for each launch."""
        return self.root / "store"

    def store_of(self, place: int) -> Path:
        """Return the FileStore of one of the cells that share the launch."""
        return self.root / f"store{place}"

    def record(self, rank: int) -> Path:
        """Return what a rank leaves: written whole or not at all."""
        return self.root / f"rank{rank}.json"

    def nccl_log(self, rank: int) -> Path:
        """Return what NCCL writes about a rank's wires."""
        return self.root / f"nccl{rank}.log"

    def position(self, rank: int) -> Path:
        """Return where a rank that hangs says how far it has come."""
        return self.root / f"rank{rank}.position"


def default_runs_folder() -> Path:
    """Return the folder in which new runs land."""
    return Path("reports")


def latest_link() -> Path:
    """Return the link that points at the newest run."""
    return default_runs_folder() / "latest"


def resolve_run(name: str | None) -> Path:
    """Return the run folder that a name stands for: a path, a run below reports/, the newest.

    Raises:
        UsageError: There is no run to show.
    """
    if name is None:
        newest = latest_link()
        if not newest.exists():
            raise UsageError(
                f"There is no run in {default_runs_folder()}/ yet. Make one with `scalebench run`, "
                "or name a run folder."
            )
        return newest.resolve() if newest.is_symlink() else newest
    below = default_runs_folder() / name
    return below if not Path(name).exists() and below.exists() else Path(name)


def baselines_folder() -> Path:
    """Return where accepted baselines are kept, a folder for each kind of machine."""
    return default_runs_folder() / "baselines"


def baseline_file(machine: str, suite: str) -> Path:
    """Return the file of one suite's accepted baseline."""
    return baselines_folder() / _checked(machine) / f"{_checked(suite)}.json"


def further_baselines(first: Path) -> list[Path]:
    """Return the further accepted runs of a suite: ``<suite>/2.json`` … next to its first file."""
    found = [path for path in first.with_suffix("").glob("*.json") if path.stem.isdecimal()]
    return sorted(found, key=lambda path: int(path.stem))


def bundled_suites() -> Path:
    """Return the folder of the suites that come with scalebench (wheel, or source checkout)."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "_suites"
    return installed if installed.is_dir() else package.parent / "suites"


def local_suites() -> Path:
    """Return the folder of the user's own suites."""
    return Path("suites")


def cache_folder() -> Path:
    """Return where answers that cost seconds to find out are kept between commands."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "scalebench"


def certificates_folder() -> Path:
    """Return where the certificates of self-tests are kept."""
    return cache_folder() / "certificates"


def config_file() -> tuple[Path, dict[str, Any]] | None:
    """Return the configuration of this folder, or None: scalebench.toml before pyproject.toml.

    Raises:
        UsageError: The file is not TOML.
    """
    for path, keys in (
        (Path("scalebench.toml"), ()),
        (Path("pyproject.toml"), ("tool", "scalebench")),
    ):
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error}.") from error
        except (ValueError, RecursionError) as error:  # no text, no TOML, nested too deeply
            raise UsageError(
                f"{path} is not TOML: {error}. A line is name = value, as gpus = [1, 2] or "
                'device = "cpu", or a [table].'
            ) from error
        for key in keys:
            table = table.get(key, {})
            if not isinstance(table, dict):
                raise UsageError(f"{path}: [{'.'.join(keys)}] must be a table, but {key} is not.")
        if table:
            return path, table
    return None
