"""Small defects in Python source: which places can be changed, and into what.

Never changed: docstrings, type annotations, ``__all__``, the text of messages and what stands in
``raise`` and ``assert``.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

OTHER: dict[type[ast.AST], tuple[type[Any], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.And: (ast.Or,),
    ast.Or: (ast.And,),
}


@dataclass(frozen=True)
class Place:
    """Source that can be changed: bytes ``begin`` to ``end``, and what may stand there instead."""

    line: int
    begin: int
    end: int
    choices: tuple[str, ...]


def places_of(source: bytes) -> list[Place]:
    """Return every place of a file, in the order of the syntax tree."""
    lengths = [len(line) for line in source.splitlines(keepends=True)]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    found = []
    for node, optional in _expressions(ast.parse(source), optional=False):
        choices = ["None"] if optional else [*_operators(node), *_values(node), *_slices(node)]
        if choices:
            begin = starts[node.lineno - 1] + node.col_offset
            end = starts[(node.end_lineno or 1) - 1] + (node.end_col_offset or 0)
            found.append(Place(node.lineno, begin, end, tuple(f"({c})" for c in choices)))
    return found


def _expressions(node: ast.AST, optional: bool) -> Iterator[tuple[ast.expr, bool]]:
    """Yield the expressions in a node, and whether each is returned where None is allowed."""
    if _is_left_alone(node):
        return
    if isinstance(node, ast.FunctionDef):
        returns = ast.unparse(node.returns) if node.returns else ""
        optional = returns.endswith("| None")  # elsewhere the type check notices
    if isinstance(node, ast.expr):
        yield node, False
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _expressions(child, optional)
    if optional and isinstance(node, ast.Return) and node.value is not None:
        yield node.value, ast.unparse(node.value) != "None"


def _is_left_alone(node: ast.AST) -> bool:
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) == "__all__"
    return isinstance(node, ast.JoinedStr | ast.Raise | ast.Assert)


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def _operators(node: ast.expr) -> Iterator[str]:
    """Yield the expression with another comparison, arithmetic or logical operator."""
    if isinstance(node, ast.Compare):
        for i, old in enumerate(node.ops):
            for new in OTHER.get(type(old), ()):
                changed = [*node.ops[:i], new(), *node.ops[i + 1 :]]
                yield ast.unparse(ast.Compare(node.left, changed, node.comparators))
    elif isinstance(node, ast.BinOp) and not (_is_text(node.left) or _is_text(node.right)):
        for new in OTHER.get(type(node.op), ()):
            yield ast.unparse(ast.BinOp(node.left, new(), node.right))
    elif isinstance(node, ast.BoolOp):
        for new in OTHER[type(node.op)]:
            yield ast.unparse(ast.BoolOp(new(), node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield ast.unparse(node.operand)


def _values(node: ast.expr) -> Iterator[str]:
    """Yield other numbers, the other truth, the other extreme, the value without ``abs``."""
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield repr(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        others = {node.value + 1, node.value - 1, node.value * 2} - {node.value}
        yield from (repr(other) for other in sorted(others))
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        other = {"min": "max", "max": "min"}.get(node.func.id)
        if other:
            yield ast.unparse(ast.Call(ast.Name(other), node.args, node.keywords))
        elif node.func.id == "abs":
            yield ast.unparse(node.args[0])


def _slices(node: ast.expr) -> Iterator[str]:
    """Yield ``x[a:b]`` without a bound that is a number, or one further where it is none."""
    if not (isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Slice)):
        return
    old = node.slice
    for name in ("lower", "upper"):
        bound = getattr(old, name)
        if bound is not None:
            number = isinstance(bound, ast.Constant | ast.UnaryOp)
            new = None if number else ast.BinOp(bound, ast.Add(), ast.Constant(1))
            lower, upper = (new, old.upper) if name == "lower" else (old.lower, new)
            yield ast.unparse(ast.Subscript(node.value, ast.Slice(lower, upper, old.step)))
