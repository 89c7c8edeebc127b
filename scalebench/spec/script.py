"""A user's own training script as data: what is started, and what its arguments depend on."""

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Literal

from pydantic import Field

from scalebench.errors import UsageError
from scalebench.spec.base import Scaling, Spec

PLACEHOLDERS = ("world_size", "global_batch", "rank_batch", "run_dir")
"""What may stand in braces in the script's arguments."""

SIZES = ("world_size", "global_batch", "rank_batch")
"""Those that are numbers and depend on the number of ranks."""

_INTERPRETER = re.compile(r"python[0-9.]*(\.exe)?")
_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}


class ScriptTarget(Spec):
    """A script, and how it is started; it takes a workload's place.

    Attributes:
        name: The script's stem, as a suite is named.
        program: Path of the script as it was given, or the name of a module.
        module: Whether it is a module: ``python -m program``.
        arguments: Its arguments, placeholders included.
        python: Interpreter that runs it.
        samples_per_step: Samples of the whole job in a step, an expression of placeholders;
            None: counted.
        scaling: As it was asked for; None: what the launches show.
        to_the_end: Let the script run on when everything is measured.
        batch_size: Of a rank, where nothing tells it.
    """

    kind: Literal["script"] = "script"
    name: str
    program: str
    module: bool = False
    arguments: tuple[str, ...] = ()
    python: str = sys.executable
    samples_per_step: str | None = None
    scaling: Scaling | None = None
    to_the_end: bool = False
    batch_size: int = Field(1, ge=1)

    @property
    def shown(self) -> str:
        """The script as it is called in messages."""
        return f"-m {self.program}" if self.module else self.program

    @property
    def takes_batch(self) -> bool:
        """Whether an argument says how large the batch is."""
        return any("{global_batch}" in a or "{rank_batch}" in a for a in self.arguments)

    @property
    def depends_on_size(self) -> bool:
        """Whether an argument depends on the number of ranks."""
        return any(f"{{{name}}}" in a for a in self.arguments for name in SIZES)

    def arguments_for(self, values: Mapping[str, object]) -> list[str]:
        """Return the arguments with each placeholder replaced; other braces stay as they are."""
        filled = []
        for argument in self.arguments:
            for name, value in values.items():
                argument = argument.replace(f"{{{name}}}", str(value))
            filled.append(argument)
        return filled


def script_from(words: Sequence[str], python: str) -> ScriptTarget:
    """Return the script that is called after ``--``.

    Args:
        words: ``train.py ARGS``, ``-m package.module ARGS``, or either after ``python``.
        python: Interpreter, unless the words begin with another one.

    Raises:
        UsageError: No script is named, or it is something else than Python.
    """
    rest = list(words)
    if rest and _INTERPRETER.fullmatch(PurePath(rest[0]).name):
        python = python if rest[0] in ("python", "python3") else rest[0]
        del rest[0]
    if rest and PurePath(rest[0]).name in ("torchrun", "accelerate", "deepspeed", "mpirun", "srun"):
        raise UsageError(
            f"{rest[0]} starts ranks, and so does scalebench: give the script itself after --, "
            "for example -- train.py --lr 0.1."
        )
    module = bool(rest) and rest[0] == "-m"
    if module:
        del rest[0]
    if not rest or rest[0].startswith("-"):
        given = f" {rest[0]} is an option." if rest else ""
        raise UsageError(
            f"Give a script, or -m and a module, after --.{given} "
            "For example: scalebench run --gpus 1,2 -- train.py --lr 0.1."
        )
    program, arguments = rest[0], tuple(rest[1:])
    stem = program if module else PurePath(program).stem
    return ScriptTarget(
        name=as_name(stem), program=program, module=module, arguments=arguments, python=python
    )


def as_name(stem: str) -> str:
    """Return a stem in the letters that names of suites have."""
    return re.sub(r"[^a-z0-9]+", "-", stem.lower()).strip("-")[:64].strip("-") or "script"


def evaluate(expression: str, values: Mapping[str, int]) -> float:
    """Return what an arithmetic expression of placeholders comes to.

    Args:
        expression: For example ``{global_batch}*4``; braces may be left out.
        values: Placeholder → value.

    Raises:
        UsageError: It is no such expression, or not above zero.
    """
    try:
        tree = ast.parse(expression.replace("{", "").replace("}", ""), mode="eval")
        value = _value(tree.body, values)
    except (SyntaxError, ValueError, KeyError, ArithmeticError, RecursionError, MemoryError):
        value = 0.0  # Python's parser calls deep nesting a MemoryError
    if not 0 < value < math.inf:
        raise UsageError(
            f"--samples-per-step {expression!r} is not a number of samples. Give a number, or "
            "whole numbers and {world_size}, {global_batch}, {rank_batch} joined by + - * /."
        )
    return value


def _value(node: ast.expr, values: Mapping[str, int]) -> float:
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return float(node.value)  # type: ignore[arg-type]
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        return _OPERATORS[type(node.op)](_value(node.left, values), _value(node.right, values))
    raise ValueError(ast.dump(node))
