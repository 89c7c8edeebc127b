"""Finding suites: the path given, then ./suites, then those that come with scalebench.

And the suite that compares strategies across suites: what ``run --strategies ddp,fsdp`` runs.
"""

import ast
import runpy
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.metrics import gate_settings
from scalebench.records.paths import bundled_suites, local_suites
from scalebench.records.storage.files import read_text
from scalebench.spec import Case, Plain, StepPlan, Suite

CORE_SUITES = ("ddp", "fsdp", "pipeline", "compression")
LARGEST_BYTES = 1 << 20


def suite_files() -> dict[str, Path]:
    """Return the suites that can be given by name; ./suites hides a bundled one."""
    return _files_in(bundled_suites()) | own_suites()


def own_suites() -> dict[str, Path]:
    """Return the suites of ./suites; in a checkout of scalebench, whose they are, none."""
    folder = local_suites()
    return {} if folder.resolve() == bundled_suites().resolve() else _files_in(folder)


def hides_bundled(name: str) -> bool:
    """Tell whether a suite of ./suites is found in place of the bundled one of this name."""
    return name in own_suites() and name in _files_in(bundled_suites())


def about_hidden(names: Sequence[str]) -> tuple[str, ...]:
    """Say which of the suites to be run, by name, are not those that come with scalebench."""
    found = own_suites()
    return tuple(
        f"Suite {name} is {found[name]}, not the suite of this name that comes with scalebench"
        for name in names or core_suites()
        if hides_bundled(name)
    )


def _files_in(folder: Path) -> dict[str, Path]:
    return {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}


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


def read_question(path: Path) -> str:
    """Return what a suite asks, without executing its file; empty: it takes code to know that.

    Raises:
        UsageError: The file cannot be read, or does not define SUITE.
    """
    try:
        text = read_text(path, LARGEST_BYTES)
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(text)))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"Suite {path} cannot be read: {error or type(error).__name__}."
        ) from error
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    if not {"SUITE", "*"} & {*names, *(n.name for n in nodes if isinstance(n, ast.alias))}:
        raise _no_suite(path)
    told = [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg == "question"]
    return next((str(t.value) for t in told if isinstance(t, ast.Constant)), "")


def _suite_in(path: Path) -> Suite:
    if not names_a_suite(path):
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


def names_a_suite(path: Path) -> bool:
    """Tell whether a file can be a suite: a training script must not be executed as one."""
    try:
        text = path.read_text(errors="replace") if path.is_file() else ""
    except OSError:  # executing it says why
        return True
    return "SUITE" in text or "import *" in text


def _no_suite(path: Path) -> UsageError:
    return UsageError(
        f"{path} does not define SUITE. A suite file sets SUITE = scalebench.Suite(…); a "
        f"training script stands after --: scalebench run -- {path}."
    )


NAME = "strategies"
USUAL_WORKLOAD = "gpt"


def strategies_suite(names: tuple[str, ...], workload: str | None) -> Suite:
    """Return one suite of several strategies, with one baseline and one workload.

    All of its rows take turns, so that each gets a fair share of the time.

    ``names``: cases of the suites, or suites: all cases that such a suite runs by default.
    ``workload`` None: the one that the strategies' suites are made for.

    Raises:
        UsageError: There is no such strategy, or they are made for different workloads.
    """
    comparable = _comparable([*suite_files()])
    cases: dict[str, Case] = {"plain": Case(name="plain", strategy=Plain())}
    made_for: dict[str, str] = {}
    for name in names:
        suite, chosen = _found(name, comparable)
        if suite.workload != USUAL_WORKLOAD:
            made_for[name] = suite.workload
        alike = {"optional": False, "batch_size": None}
        cases |= {case.name: case.model_copy(update=alike) for case in chosen}
    if workload is None and len(set(made_for.values())) > 1:
        told = ", ".join(f"{name} for {of}" for name, of in made_for.items())
        raise UsageError(
            f"--strategies compares on one workload, and these are made for several ({told}): "
            "name one with --workload."
        )
    return Suite(
        name=NAME,
        question="Which of these strategies trains fastest here, and which needs least memory?",
        cases=tuple(cases.values()),
        workload=next(iter(made_for.values()), USUAL_WORKLOAD),
        steps=StepPlan(window_s=0.4, rounds_s=0.4, min_steps=8),
    )


def known_strategies(suite_names: Sequence[str]) -> set[str]:
    """Return what may be compared of some suites: their cases, and the suites themselves."""
    suites = _comparable(suite_names)
    cases = {case.name for suite in suites for case in _strategies(suite)}
    return cases | {suite.name for suite in suites}


def _comparable(names: Sequence[str]) -> list[Suite]:
    """Return the suites whose steps are measured, not races or recoveries."""
    suites = load_suites(names)
    return [s for s in suites if s.race is None and s.recovery is None and s.cases]


def _found(name: str, suites: Sequence[Suite]) -> tuple[Suite, list[Case]]:
    """Return the cases that a name stands for: that of a case goes before that of a suite."""
    # The suite of a case's own name knows best what the case is made for.
    ordered = sorted(suites, key=lambda suite: suite.name != name)
    for suite in ordered:
        for case in _strategies(suite):
            if case.name == name:
                return suite, [case]
    for suite in ordered:
        if suite.name == name:
            return suite, [case for case in _strategies(suite) if not case.optional]
    nearest = get_close_matches(name, known_strategies([*suite_files()]), n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    names = ", ".join(sorted(suite.name for suite in suites))
    raise UsageError(
        f"There is no strategy {name!r}.{hint} Valid: {names}, and each of their cases "
        "(scalebench list suites)."
    )


def _strategies(suite: Suite) -> Iterator[Case]:
    return (case for case in suite.cases if not isinstance(case.strategy, Plain))
