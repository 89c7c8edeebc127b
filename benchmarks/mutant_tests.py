"""Which unit tests can notice a change at one place, and what they say of it.

Only tests that call the changed function can notice: ``benchmarks/called_functions.py`` has them.
The test files of the module itself come first, then the other tests that call the function, then
their whole files, since the tests of a file may share what was set up once. A change outside of
functions can reach what imports the module: there all files that call any of these are run.
"""

import ast
import importlib
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from benchmarks.called_functions import Called

UNDECIDED = "undecided"
"""The tests did not end in ``WALL_S``, and did not use the processor time that would decide."""
WALL_S, MEMORY_BYTES = 1800.0, 8 << 30
CPU_S, CPU_FACTOR = 60.0, 4.0
"""Limit of one run of tests: this many seconds of processor time, and this many times their own."""
ONE_BY_ONE = 400
"""Where more tests than this call a function, whole files are run at once."""
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
    """Return the tests to run, one group after the other until one fails."""
    function = function_at((tree / path).read_text(encoding="utf-8"), line)
    own = naming(tree, path)
    first = [file for file in own if file.startswith(f"tests/unit/{Path(path).parts[1]}/")]
    groups = [_in_order(path, {*first}, calls)]
    if function is None:
        modules = {path, *importers(tree, path)}
        reaching = {
            test.split("::")[0]
            for test, called in calls.items()
            if any(name.split("::")[0] in modules for name in called.functions)
        }
        groups += [_in_order(path, {*own, *reaching} - {*first}, calls)]
    else:
        name = f"{path}::{function}"
        callers = [test for test, called in calls.items() if name in called.functions]
        others = [test for test in callers if test.split("::")[0] not in first]
        if len(others) <= ONE_BY_ONE:
            groups += [sorted(others, key=lambda test: calls[test].cpu_s)]
        groups += [_in_order(path, {test.split("::")[0] for test in callers} - {*first}, calls)]
    return [group for group in groups if group]


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


def run_tests(tree: Path, tests: Sequence[str], calls: dict[str, Called]) -> str:
    """Return what noticed: a test, "time limit" or "import"; "" if all tests passed."""
    whole = {test for test in tests if "::" not in test}
    usual_s = sum(
        called.cpu_s
        for test, called in calls.items()
        if test in tests or test.split("::")[0] in whole
    )
    with tempfile.TemporaryFile("w+") as output:
        child = os.fork()
        if child == 0:
            _run_and_exit(tree, tests, output.fileno(), CPU_S + CPU_FACTOR * usual_s)
        status = _wait(child)
        output.seek(0)
        lines = output.read().splitlines()
    if status == 0:
        return ""
    if status is None:
        return UNDECIDED
    if os.WIFSIGNALED(status):
        return "time limit"
    failed = [line.split()[1] for line in lines if line.startswith("FAILED ")]
    return failed[0] if failed else "import"


def _run_and_exit(tree: Path, tests: Sequence[str], output: int, cpu_s: float) -> None:
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

        arguments = ["-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider"]
        arguments += ["--timeout", "0", "--hypothesis-profile", "quick"]
        arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # of what is preloaded
        code = int(pytest.main([*arguments, *tests]))
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


def _in_order(path: str, files: set[str], calls: dict[str, Called]) -> list[str]:
    """Return files, the module's own first, then those of its package, the short ones first."""
    package = f"tests/unit/{Path(path).parts[1]}/"
    cpu_s = dict.fromkeys(files, 0.0)
    for test, called in calls.items():
        if (file := test.split("::")[0]) in cpu_s:
            cpu_s[file] += called.cpu_s
    return sorted(
        files, key=lambda f: (not _is_own(path, f), not f.startswith(package), cpu_s[f], f)
    )
