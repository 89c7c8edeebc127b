"""What Python files import when they run."""

import ast
import functools
from pathlib import Path

import scalebench


@functools.cache
def parsed(code: str) -> list[ast.AST]:
    wanted = (ast.If, ast.Import, ast.ImportFrom)
    return [node for node in ast.walk(ast.parse(code)) if isinstance(node, wanted)]


@functools.cache
def imported(code: str, of_types: bool = False) -> set[str]:
    """Return what code imports, wherever the import stands, as dotted names.

    What only a type checker sees counts with `of_types`; a relative import keeps its dots.
    """
    found, skipped = set(), set()
    nodes = parsed(code)
    for node in () if of_types else nodes:
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(node.body)
    for node in nodes:
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


PACKAGE = Path(scalebench.__file__).parent


FLOORS = [
    {"__init__", "errors", "units", "stats", "grouping"},
    {"spec"},
    {"records", "machine"},
    {"trace", "costmodel", "gate", "launch", "importing"},
    {"worker", "analysis"},
    {"search"},
    {"report"},
    {"session"},
    {"cli", "pytest_plugin", "__main__"},
]


FILES = [p.relative_to(PACKAGE) for p in PACKAGE.rglob("*.py") if "_suites" not in p.parts]
