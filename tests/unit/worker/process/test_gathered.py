"""No rank unpickles what another has sent."""

import ast
from pathlib import Path

import scalebench


def test_no_rank_unpickles_what_another_has_sent() -> None:
    """The collectives of objects in torch do."""
    for path in Path(scalebench.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = f"{node.value.id}.{node.attr}"
                objects = node.value.id == "dist" and "_object" in node.attr
                assert not objects and called not in ("pickle.load", "pickle.loads"), path
