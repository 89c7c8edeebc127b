"""Fields of a row as they are worked out: values, and the reasons for those that are null."""

from dataclasses import dataclass, field
from typing import Any


class Unavailable(Exception):
    """There is no such value; the text says why."""


@dataclass
class RowFields:
    """A part of a row of the summary.

    Attributes:
        values: Name of the field → its value.
        reasons: Name of a null field → why it is null.
        stamps: What has to be known before the row is trusted.
    """

    values: dict[str, Any] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    stamps: list[str] = field(default_factory=list)

    def set(self, name: str, value: Any, reason: str) -> None:
        """Give a field its value; None: it is null for this reason."""
        self.values.pop(name, None)
        self.reasons.pop(name, None)
        if value is None:
            self.reasons[name] = reason
        else:
            self.values[name] = value
