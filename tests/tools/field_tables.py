"""The lists of docs/fields.md, from the records themselves: ``python -m tests.tools.field_tables``.

Names and defaults are the records' own, meanings are the ``Attributes`` of their docstrings. So the
page says what the code says; a test holds it to that.
"""

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from scalebench import spec
from scalebench.spec.recovery import Race, Recipe, Recovery
from scalebench.spec.strategies.frameworks import FromFramework

PAGE = Path("docs/fields.md")
RECORDS: tuple[type[spec.Spec], ...] = (
    spec.Suite,
    spec.Case,
    spec.Loader,
    spec.StepPlan,
    spec.Collectives,
    Recipe,
    Race,
    Recovery,
)

BEGINNING = """\
# Fields

What a [suite](suites.md#your-own-suite) is written with: every field of its records and strategies,
with its default. A misspelt field is an error, and so is a value out of its range. This page is
made from the code.
"""
STRATEGIES_BEGIN = """\
## Strategies

`scalebench list` names the cases that the bundled suites make of them.

### Settings of every strategy

On CUDA `run` turns `autocast` and `compile` on for all cases; `--dtype float32` and `--no-compile`
leave them as the case has them.
"""
FRAMEWORKS_BEGIN = """\
### Settings of every framework

DeepSpeed, Accelerate, Fabric, FairScale and Horovod have these as well.
"""


def page() -> str:
    """Return the whole page."""
    parts = [BEGINNING, *(_section(record, 2, set()) for record in RECORDS), STRATEGIES_BEGIN]
    parts.append(_list(spec.Execution, set()))
    shared = set(spec.Execution.model_fields)
    every = [one for one in spec.STRATEGIES.values() if one is not spec.Script]
    parts += [_section(one, 3, shared) for one in every if not issubclass(one, FromFramework)]
    parts += [FRAMEWORKS_BEGIN, _list(FromFramework, shared)]
    shared |= set(FromFramework.model_fields)
    parts += [_section(one, 3, shared) for one in every if issubclass(one, FromFramework)]
    return "\n".join(parts)


def meanings(record: type) -> dict[str, str]:
    """Return field → its text in the docstrings of a record and of what it inherits from."""
    found: dict[str, str] = {}
    for of in reversed(record.__mro__):
        if issubclass(of, spec.Spec):
            found |= dict(_attributes(inspect.cleandoc(of.__doc__ or "")))
    return found


def _attributes(docstring: str) -> Iterator[tuple[str, str]]:
    _, begins, listed = docstring.partition("Attributes:\n")
    if not begins:
        return
    block = re.split(r"\n(?=\S)", listed)[0]
    for entry in re.split(r"\n(?=\S)", textwrap.dedent(block)):
        name, _, text = entry.partition(":")
        yield name.strip(), " ".join(text.split())


def _section(record: type[spec.Spec], level: int, leave_out: set[str]) -> str:
    first = inspect.cleandoc(record.__doc__ or "").split("\n\n")[0]
    heading = f"{'#' * level} {record.__name__}\n\n{_as_markdown(' '.join(first.split()))}\n"
    return heading + ("\n" + _list(record, leave_out) if _own(record, leave_out) else "")


def _own(record: type[spec.Spec], leave_out: set[str]) -> dict[str, FieldInfo]:
    return {
        name: field
        for name, field in record.model_fields.items()
        if name not in leave_out and not _is_fixed(field)
    }


def _is_fixed(field: FieldInfo) -> bool:
    """Tell whether a field has but one value, as the ``kind`` of a strategy."""
    alone = get_origin(field.annotation) is Literal and len(get_args(field.annotation)) == 1
    return alone or field.annotation is type(None)


def _list(record: type[spec.Spec], leave_out: set[str]) -> str:
    told = meanings(record)
    rows = []
    for name, field in _own(record, leave_out).items():
        meaning = _as_markdown(told[name])
        choices = _choices(field)
        named = all(one.replace('"', "") in meaning.replace('"', "") for one in choices)
        meaning += "" if named else f" One of {', '.join(choices)}."
        rows.append(f"- **`{name}`** ({_default(field)}): {meaning}")
    return "\n".join(rows) + "\n"


def _choices(field: FieldInfo) -> list[str]:
    """Return the texts that a field may be, where it is one of a few."""
    if get_origin(field.annotation) is not Literal:
        return []
    return [f"`{choice!r}`".replace("'", '"') for choice in get_args(field.annotation)]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, spec.Spec):
        return f"`{type(value).__name__}()`"
    if value is None or isinstance(value, bool | int | float):
        return str(value)
    if isinstance(value, tuple) and len(value) > 6:
        return "all"
    return f"`{value!r}`".replace("'", '"')


def _as_markdown(text: str) -> str:
    return text.replace("``", "`")


if __name__ == "__main__":
    PAGE.write_text(page())
