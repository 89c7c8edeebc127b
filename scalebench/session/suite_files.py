"""Finding suites: the path given, then ./suites, then those that come with scalebench."""

import runpy
from collections.abc import Sequence
from pathlib import Path

from pydantic import ValidationError

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.settings import gate_settings
from scalebench.records.paths import bundled_suites, local_suites
from scalebench.spec import Suite

CORE_SUITES = ("ddp", "fsdp", "pipeline", "compression")


def suite_files() -> dict[str, Path]:
    """Return the suites that can be given by name; ./suites hides a bundled one."""
    found: dict[str, Path] = {}
    for folder in (bundled_suites(), local_suites()):
        if folder.is_dir():
            found |= {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}
    return found


def core_suites() -> list[str]:
    """Return the names that ``run`` without a suite runs."""
    available = suite_files()
    return [name for name in CORE_SUITES if name in available]


def load_suites(names: Sequence[str]) -> list[Suite]:
    """Load suites by name or path; without any, the core suites.

    Raises:
        UsageError: No such suite, or the file does not export one.
    """
    wanted = list(dict.fromkeys(names)) or core_suites()
    suites = [load_suite(name) for name in wanted]
    twice = {s.name for s in suites if [t.name for t in suites].count(s.name) > 1}
    if twice:
        raise UsageError(f"Two of the given suites have the same name: {', '.join(sorted(twice))}.")
    return suites


def load_suite(name: str) -> Suite:
    """Load one suite by name or path."""
    path = Path(name)
    if path.suffix != ".py":
        known = suite_files()
        if name not in known:
            raise unknown_name("suite", name, known)
        path = known[name]
    elif not path.is_file():
        raise UsageError(
            f"There is no suite file {name}. Give the path of a suite file, or the name of a "
            "built-in suite (`scalebench list`)."
        )
    return _suite_in(path)


def _suite_in(path: Path) -> Suite:
    if not _names_a_suite(path):
        raise _no_suite(path)
    try:
        suite = runpy.run_path(str(path)).get("SUITE")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"Suite {path}: {error.title}.{field}: {first['msg']}.") from error
    except (Exception, SystemExit) as error:
        first_line = str(error).splitlines()[0] if str(error) else ""
        raise UsageError(
            f"Suite {path} raised {type(error).__name__}: {first_line}. If it is a training "
            f"script, put -- before it: scalebench run -- {path}."
        ) from error
    if not isinstance(suite, Suite):
        raise _no_suite(path)
    gate_settings(suite.gate, f"gate of suite {path}")  # a run should not end with this error
    return suite


def _names_a_suite(path: Path) -> bool:
    """Tell whether a file can be a suite: a training script must not be executed as one."""
    try:
        text = path.read_text(errors="replace")
    except OSError:  # executing it says why
        return True
    return "SUITE" in text or "import *" in text


def _no_suite(path: Path) -> UsageError:
    return UsageError(
        f"{path} does not define SUITE. A suite file sets SUITE = scalebench.Suite(…); a "
        f"training script stands after --: scalebench run -- {path}."
    )
