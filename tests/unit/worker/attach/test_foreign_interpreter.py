"""What runs in the user's interpreter needs torch and the standard library, and Python 3.9."""

import ast
import sys
from pathlib import Path

import pytest

from scalebench.worker import attach, portable

MODULES = [*sorted(Path(attach.__file__).parent.glob("*.py")), Path(portable.__file__)]
OURS = ("scalebench.worker.attach", "scalebench.worker.portable")
ON_THE_WAY = [Path(attach.__file__).parents[up] / "__init__.py" for up in (1, 2)]


@pytest.mark.parametrize("path", [*MODULES, *ON_THE_WAY], ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_it_imports_nothing_else(path):
    tree = ast.parse(path.read_text(), feature_version=(3, 9))
    typing_only = {
        node
        for branch in ast.walk(tree)
        if isinstance(branch, ast.If) and "TYPE_CHECKING" in ast.unparse(branch.test)
        for node in ast.walk(branch)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            root = name.partition(".")[0]
            known = root in sys.stdlib_module_names or root == "torch"
            assert known or name.startswith(OURS), name


@pytest.mark.parametrize("path", MODULES, ids=lambda p: p.stem)
def test_annotations_are_not_evaluated_where_python_3_9_could_not(path):
    tree = ast.parse(path.read_text())
    unions = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.BinOp)
        and isinstance(node.op, ast.BitOr)
        and isinstance(node.right, ast.Constant)
        and node.right.value is None
    ]
    if unions:
        assert "from __future__ import annotations" in path.read_text()
