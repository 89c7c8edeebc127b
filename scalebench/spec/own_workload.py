"""``MODULE:FUNCTION`` behind what people give for it: a file, or the module alone."""

import ast
from pathlib import Path

LARGEST_BYTES = 1 << 20


def meant_target(name: str) -> str | None:
    """Return the workload that a name seems to mean, from a Python file in this folder; or None.

    The file is read, and not executed.
    """
    given, _, function = name.removeprefix("./").partition(":")
    module = given.removesuffix(".py").replace("/", ".")
    package, _, last = module.rpartition(".")
    for stem, wanted in ((module, function), (package, function or last)):
        found = _functions(Path(f"{stem.replace('.', '/')}.py"))
        if found and (not wanted or wanted in found):
            usual = [one for one in ("workload", stem.rpartition(".")[2]) if one in found]
            return f"{stem}:{wanted or (usual or found)[0]}"
    return None


def _functions(file: Path) -> list[str]:
    """Return the public functions of a file that one argument is enough for; none: unreadable."""
    try:
        if file.stat().st_size > LARGEST_BYTES:
            return []
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _takes_one(node)
    ]


def _takes_one(node: ast.FunctionDef) -> bool:
    named = len(node.args.posonlyargs) + len(node.args.args)
    return named - len(node.args.defaults) <= 1 <= named + (node.args.vararg is not None)
