"""What a subject says of a row: its fields, each with a value or the reason why it is null."""

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from scalebench.records.summary import Row

T = TypeVar("T")

NO_LAUNCH = "no launch of this row succeeded"

Fields = dict[str, Any]
"""Name of a row's field → its value, or `Unavailable`.

``stamps`` is the list of what has to be known before the row is trusted; those of all subjects are
joined. Of two subjects that say a field the later one holds.
"""


class Unavailable(Exception):
    """There is no such value; the text says why. As a field's value: the field is null."""


def known(value: T | None, why: str | None) -> T | Unavailable:
    """Return a field's value; None: it is null for this reason."""
    return Unavailable(why) if value is None else value


def null(names: Iterable[str], why: object) -> Fields:
    """Return fields that are all null for one reason."""
    return dict.fromkeys(names, Unavailable(str(why)))


def found_by(find: Callable[..., T], *arguments: Any) -> T | Unavailable:
    """Return what a function finds, or why it raises `Unavailable`."""
    try:
        return find(*arguments)
    except Unavailable as why:
        return why


def union_of(subjects: Iterable[Fields]) -> dict[str, Any]:
    """Return the fields of a row, with ``stamps`` and ``unavailable``, from what subjects say."""
    joined: Fields = {}
    stamps: list[str] = []
    for fields in subjects:
        stamps += fields.get("stamps", [])
        joined |= fields
    why = {name: str(value) for name, value in joined.items() if isinstance(value, Unavailable)}
    return {**joined, **dict.fromkeys(why), "stamps": stamps, "unavailable": why}


def with_fields(row: Row, fields: Fields) -> Row:
    """Return a row with what one more subject says of it."""
    update = union_of([fields])
    reasons = {name: why for name, why in row.unavailable.items() if name not in fields}
    update["stamps"] = row.stamps + update["stamps"]
    update["unavailable"] = reasons | update["unavailable"]
    return row.model_copy(update=update)
