"""Which unit tests can notice a change at one place, and what they say of it.

Only tests that call the changed function can notice: ``benchmarks/called_functions.py`` has them.
Those of the module and its package come first, then the other tests that call the function, then
the rest of their files, since the tests of a file may share what was set up once. A change outside
of functions can reach what imports the module: there the tests that call any of these are run.
"""

import ast
import bisect
import importlib
import itertools
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.called_functions import Called

UNDECIDED = "undecided"
"""The tests did not end in ``WALL_S``, and did not use the processor time that would decide."""
IMPORT, TIME_LIMIT = "import", "time limit"
"""Noticed by no single test: they could not be collected or set up, or used too much time."""
WALL_S, MEMORY_BYTES = 1800.0, 8 << 30
CPU_S, CPU_FACTOR, UNKNOWN_CPU_S = 30.0, 4.0, 300.0
"""Limit of one run of tests: this many seconds of processor time, and this many times their own; in
all, where their own is not known."""
ENOUGH_S = 120.0
"""Tests that are not close are run for this long, in recorded processor time. What only a later one
would notice counts as not noticed: the share can come out too low by this, never too high."""
THIRD_PARTY = ("numpy", "scipy.optimize", "scipy.stats", "pandas", "pydantic", "rich", "hypothesis")


def preload() -> None:
    """Import once what every run of tests needs, and nothing of the code that is changed."""
    for name in (*THIRD_PARTY, "pytest", "torch"):
        importlib.import_module(name)


def function_at(source: str, line: int) -> str | None:
    """Return the qualified name of the innermost function around a line; None outside of all."""
    found, scope = None, ""
    node: ast.AST = ast.parse(source)
    while True:
        for child in ast.walk(node):
            if child is not node and isinstance(child, ast.FunctionDef | ast.ClassDef):
                first = min([child.lineno, *(d.lineno for d in child.decorator_list)])
                if first <= line <= (child.end_lineno or child.lineno):
                    break
        else:
            return found
        node, name = child, f"{scope}{child.name}"
        is_function = isinstance(child, ast.FunctionDef)
        found = name if is_function else None
        scope = f"{name}.<locals>." if is_function else f"{name}."


def tests_of(tree: Path, path: str, line: int, calls: dict[str, Called]) -> list[list[str]]:
    """Return the tests to run, one group after the other until one fails; none stands twice."""
    function = function_at((tree / path).read_text(encoding="utf-8"), line)
    near = naming(tree, path)
    if function is None:
        callers = _callers(calls, lambda name: name.startswith(f"{path}::"))
        modules = importers(tree, path)
        rest = _callers(calls, lambda name: name.split("::")[0] in modules)
    else:
        callers = _callers(calls, f"{path}::{function}".__eq__)
        rest = set()
    files = {*near, *(_file(test) for test in callers)}
    rest |= {test for test in calls if _file(test) in files}
    package = f"tests/unit/{Path(path).parts[1]}/"
    close = {
        *(test for test in callers if _file(test) in near and test.startswith(package)),
        *(test for test in calls if test.startswith(package) and _is_own(path, test)),
    }
    further = [
        *_in_order(path, callers - close, calls),
        *_in_order(path, rest - callers - close, calls),
    ]
    ends_s = list(itertools.accumulate(calls[test].cpu_s for test in further))
    groups = [_in_order(path, close, calls), further[: bisect.bisect_right(ends_s, ENOUGH_S)]]
    return [group for group in groups if group]


def near_files(tree: Path, path: str) -> list[list[str]]:
    """Return the test files of a module's package that name or import it; the calls are unknown."""
    package = f"tests/unit/{Path(path).parts[1]}/"
    files = [file for file in naming(tree, path) if file.startswith(package)]
    return [sorted(files, key=lambda file: (not _is_own(path, file), file))] if files else []


def _file(test: str) -> str:
    return test.split("::")[0]


def _callers(calls: dict[str, Called], wanted: Callable[[str], bool]) -> set[str]:
    return {test for test, called in calls.items() if any(map(wanted, called.functions))}


def naming(tree: Path, path: str) -> list[str]:
    """Return the unit tests that have a module's name, or import it."""
    words = _imports(path)
    return [
        str(file.relative_to(tree))
        for file in sorted((tree / "tests" / "unit").rglob("test_*.py"))
        if _is_own(path, str(file)) or any(word in file.read_text("utf-8") for word in words)
    ]


def importers(tree: Path, path: str) -> set[str]:
    """Return the modules of scalebench that import from a module."""
    words = _imports(path)
    return {
        str(file.relative_to(tree))
        for file in (tree / "scalebench").rglob("*.py")
        if any(word in file.read_text(encoding="utf-8") for word in words)
    }


def run_tests(tree: Path, tests: Sequence[str], calls: dict[str, Called], *options: str) -> str:
    """Return what noticed: a test, TIME_LIMIT or IMPORT; "" if all tests passed."""
    if all(test in calls for test in tests):
        limit_s = CPU_S + CPU_FACTOR * sum(calls[test].cpu_s for test in tests)
    else:
        limit_s = UNKNOWN_CPU_S
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            _run_and_exit(tree, [*options, *tests], output.fileno(), limit_s)
        status = _wait(child)
        output.seek(0)
        lines = output.read().splitlines()
    if status == 0:
        return ""
    if status is None:
        return UNDECIDED
    if os.WIFSIGNALED(status):
        return TIME_LIMIT
    failed = [
        line.removeprefix("FAILED ").partition(" - ")[0]  # parameters may have spaces
        for line in lines
        if line.startswith("FAILED ")
    ]
    return failed[0] if failed else IMPORT


def fails_anyway(tree: Path, noticed: str, tests: Sequence[str], calls: dict[str, Called]) -> bool:
    """Is what noticed a change nothing but a test that fails without the change, too?"""
    if "::" in noticed:
        return bool(run_tests(tree, [noticed], calls))
    return noticed == IMPORT and bool(run_tests(tree, tests, calls, "--collect-only"))


def _run_and_exit(tree: Path, arguments: Sequence[str], output: int, cpu_s: float) -> None:
    """Run pytest in this process, which was forked for it, and end it."""
    code = 70
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(cpu_s), int(cpu_s)))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        os.environ["PYTHONPATH"] = str(tree)
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
            del sys.modules[name]
        sys.path[:] = [str(tree), *sys.path[1:]]
        import pytest

        options = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        options += ["--timeout", "0", "--hypothesis-profile", "quick"]
        options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is preloaded
        code = int(pytest.main([*options, *arguments]))
        import scalebench

        if not (scalebench.__file__ or "").startswith(str(tree)):
            code = 71
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int) -> int | None:
    """Return how a process ended; None if it had to be ended."""
    end = time.monotonic() + WALL_S
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.05)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _imports(path: str) -> tuple[str, ...]:
    """Return the beginnings of the statements that import a module."""
    dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    package, _, name = dotted.rpartition(".")
    return f"from {dotted} import", f"import {dotted}", f"from {package} import {name}"


def _is_own(path: str, test: str) -> bool:
    return f"/test_{Path(path).stem}.py" in test


def _in_order(path: str, tests: set[str], calls: dict[str, Called]) -> list[str]:
    """Return tests by files: the module's own first, then its package's, the short ones first."""
    package = f"tests/unit/{Path(path).parts[1]}/"
    cpu_s = dict.fromkeys(map(_file, tests), 0.0)
    for test in tests:
        cpu_s[_file(test)] += calls[test].cpu_s

    def place(test: str) -> tuple[object, ...]:
        file = _file(test)
        return not _is_own(path, file), not file.startswith(package), cpu_s[file], file

    return sorted((test for test in calls if test in tests), key=place)  # a file keeps its order
