"""What Python files import when they run."""

import ast
import functools
from pathlib import Path

import scalebench


@functools.cache
def imported(code: str, of_types: bool = False) -> set[str]:
    """Return what code imports, wherever the import stands, as dotted names.

    What only a type checker sees counts with `of_types`; a relative import keeps its dots.
    """
    tree, found = ast.parse(code), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and not of_types and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found |= {f"{module}.{alias.name}" for alias in node.names}
    return found


PACKAGE = Path(scalebench.__file__).parent


FLOORS = [
    {"__init__", "errors", "units", "stats", "grouping", "resources"},
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
