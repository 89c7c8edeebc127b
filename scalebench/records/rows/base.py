"""What the nested fields of a row have in common.

A ``summary.json`` may come from elsewhere, or from another version: a nested field that is not
what it should be counts as absent, and what a file does not say is not written again.
"""

from typing import Annotated, Any, TypeVar

from pydantic import (
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)

from scalebench.records.base import Record

Value = TypeVar("Value")


class RowPart(Record):
    """A nested field of a row; only what was set is in its JSON."""

    @model_serializer(mode="wrap")
    def _as_set(self, write: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {name: v for name, v in write(self).items() if name in self.model_fields_set}


def _absent_if_wrong(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    try:
        return validate(value)
    except ValidationError:
        return None


IfValid = Annotated[Value | None, WrapValidator(_absent_if_wrong)]
"""A field that counts as absent where a file has something else there."""
