"""A user's own training script as data: what is started, and what its arguments depend on."""

import ast
import math
import operator
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Literal

from pydantic import Field

from scalebench.errors import UsageError
from scalebench.spec.base import Scaling, Spec

PLACEHOLDERS = ("world_size", "global_batch", "rank_batch", "run_dir")
"""What may stand in braces in the script's arguments."""

SIZES = ("world_size", "global_batch", "rank_batch")
"""Those that are numbers and depend on the number of ranks."""

_MEANT = {
    **dict.fromkeys(("batch", "batch_size", "local_batch", "micro_batch"), "rank_batch"),
    **dict.fromkeys(("n", "gpus", "ngpus", "num_gpus", "nproc", "ranks", "world"), "world_size"),
    **dict.fromkeys(("out", "run"), "run_dir"),
}
_CLOSE = 0.85

INTERPRETER = re.compile(r"python[0-9.]*(\.exe)?")
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON_OPTION = re.compile(r"-[uBOvqbEs]+|-[WX].*")

LAUNCHERS = (
    *("torchrun", "accelerate", "accelerate-launch", "deepspeed", "horovodrun", "composer"),
    *("colossalai", "fabric", "torchx"),
    *("mpirun", "mpiexec", "orterun", "prun", "srun", "jsrun", "aprun"),
)
"""Programs that start ranks."""

LAUNCHER_MODULES = (
    *("torch.distributed.run", "torch.distributed.launch", "accelerate", "deepspeed"),
    *("colossalai.cli", "lightning.fabric.cli", "lightning_fabric.cli", "torchx", "horovod.runner"),
)

ENVIRONMENTS = (
    *("uv", "poetry", "pipenv", "pdm", "hatch", "rye", "pixi", "conda", "mamba", "micromamba"),
)
"""Programs whose ``run`` starts another one in an environment of its own."""

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
        python_options: Of the interpreter, such as ``-u``.
        environment: Set for the script, as ``NAME=value``.
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
    python_options: tuple[str, ...] = ()
    environment: tuple[str, ...] = ()
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

    @property
    def other_braces(self) -> list[str]:
        """Names in braces that are no placeholders, and that the script gets as they stand."""
        names = re.findall(r"\{([A-Za-z_]\w*)\}", " ".join(self.arguments))
        return [name for name in dict.fromkeys(names) if name not in PLACEHOLDERS]

    def check_placeholders(self) -> None:
        """Raise UsageError for a name in braces that is almost a placeholder."""
        for name in self.other_braces:
            near = get_close_matches(name.lower(), PLACEHOLDERS, n=1, cutoff=_CLOSE)
            meant = _MEANT.get(name.lower()) or next(iter(near), None)
            if meant is not None:
                valid = ", ".join(f"{{{one}}}" for one in PLACEHOLDERS)
                raise UsageError(
                    f"{{{name}}} in the script's arguments is no placeholder. Write {{{meant}}}. "
                    f"Valid: {valid}."
                )

    def arguments_for(self, values: Mapping[str, object]) -> list[str]:
        """Return the arguments with each placeholder replaced; other braces stay as they are."""
        filled = []
        for argument in self.arguments:
            for name, value in values.items():
                argument = argument.replace(f"{{{name}}}", str(value))
            filled.append(argument)
        return filled


def script_from(words: Sequence[str], python: str | None) -> ScriptTarget:
    """Return the script that is called after ``--``.

    Args:
        words: ``train.py ARGS``, ``-m package.module ARGS``, or either after ``python`` and its
            options; settings such as ``NAME=value`` or ``env NAME=value`` may stand before.
        python: Interpreter that was asked for; None: the one that the words begin with, and without
            one scalebench's own.

    Raises:
        UsageError: No script is named, or it is something else than Python.
    """
    environment, rest = settings_before(words)
    options: list[str] = []
    if rest and INTERPRETER.fullmatch(PurePath(rest[0]).name):
        python = python if python and rest[0] in ("python", "python3") else rest[0]
        del rest[0]
        while rest and _PYTHON_OPTION.fullmatch(rest[0]):
            taken = 2 if rest[0] in ("-W", "-X") else 1
            options += rest[:taken]
            del rest[:taken]
    _refuse_launchers(rest)
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
        name=as_name(stem),
        program=program,
        module=module,
        arguments=arguments,
        python=python or sys.executable,
        python_options=tuple(options),
        environment=tuple(environment),
    )


def settings_before(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the settings ``NAME=value`` that words begin with, and the words behind them."""
    rest = list(words)
    if rest[:1] == ["env"]:
        del rest[0]
    environment = []
    while rest and _SETTING.match(rest[0]):
        environment.append(rest.pop(0))
    return environment, rest


def _refuse_launchers(rest: Sequence[str]) -> None:
    """Raise UsageError for a program that starts ranks or an environment, with what to write."""
    first = PurePath(rest[0]).name if rest else ""
    module = rest[1] if rest[:1] == ["-m"] and len(rest) > 1 else ""
    launcher = module or first
    if first in LAUNCHERS or module.startswith(LAUNCHER_MODULES):
        raise UsageError(
            f"{launcher} starts ranks, and so does scalebench: give the script itself after --, "
            f"for example {without_launcher(rest[2 if module else 1 :])}."
        )
    if first in ENVIRONMENTS and rest[1:2] == ["run"]:
        place = next((i for i, w in enumerate(rest) if i > 1 and _begins_a_script(w)), len(rest))
        raise UsageError(
            f"{first} run chooses an interpreter, which scalebench has to start itself: "
            f'scalebench run --python "$({shlex.join(rest[:place])} which python)" '
            f"{without_launcher(rest[place:])}."
        )


def _begins_a_script(word: str) -> bool:
    is_python = INTERPRETER.fullmatch(PurePath(word).name) is not None
    return is_python or word in ("-m", "--module") or word.endswith(".py")


def without_launcher(rest: Sequence[str]) -> str:
    """Return ``-- SCRIPT ARGS`` for words that hold a script behind a launcher's own options."""
    words = list(rest)
    while words and not (_begins_a_script(words[0]) and not INTERPRETER.fullmatch(words[0])):
        del words[0]
    if not words:
        return "-- train.py --lr 0.1"
    return f"-- {shlex.join(['-m', *words[1:]] if words[0] == '--module' else words)}"


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
