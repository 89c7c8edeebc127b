"""What specifications and records share: nothing unknown, nothing changed later, plain JSON.

A ``summary.json`` may come from elsewhere, or from another version: a nested field that is not
what it should be counts as absent, and what a file does not say is not written again.
"""

import re
from typing import Annotated, Any, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_serializer,
)
from pydantic_core import PydanticSerializationError, to_json

Scaling = Literal["strong", "weak"]
Device = Literal["cpu", "cuda"]
FloatDtype = Literal["float32", "bfloat16"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=64)]
LARGE = 1 << 60
"""No count of bytes, parameters or tokens in a record reaches this; a file that says so lies."""
Value = TypeVar("Value")
CollectiveName = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "all_to_all_uneven",
    "broadcast",
    "reduce",
    "send_recv",
    "send_recv_ring",
    "barrier",
]
COLLECTIVES: tuple[CollectiveName, ...] = get_args(CollectiveName)
ONLY_IN_PLACE = ("all_reduce", "broadcast", "reduce")
"""What torch.distributed does in place; it offers no other way."""
EITHER_PLACE = ("all_gather", "reduce_scatter")
"""What may read its input from where its result goes, or from elsewhere."""
IN_GROUPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv_ring")
"""What groups of fewer than all ranks can be timed doing by themselves."""

DtypeName = Literal["float32", "bfloat16", "int8"]
DTYPES: tuple[DtypeName, ...] = get_args(DtypeName)

BACKEND = "backend"
"""The algorithm that is whatever the backend does."""
AlgorithmName = Literal[
    "ring",
    "halving-doubling",
    "tree",
    "double-tree",
    "hierarchical",
    "gather-broadcast",
    "parameter-server",
]
OWN_ALGORITHMS: tuple[AlgorithmName, ...] = get_args(AlgorithmName)
"""All-reduces of ``worker/collectives``, which only a worker imports: it imports torch."""


class JsonModel(BaseModel):
    """Base of what is written as JSON, also where it holds names of files that are no UTF-8."""

    def model_dump_json(self, *, indent: int | None = None, **options: Any) -> str:
        r"""Return the model as JSON; bytes that are no text are in it as ``\udc80`` to ``\udcff``.

        Options: those of pydantic's function.
        """
        try:
            return super().model_dump_json(indent=indent, **options)
        except PydanticSerializationError:
            plain = _escaped(self.model_dump(mode="json", **options))
            return to_json(plain, indent=indent, inf_nan_mode="null").decode()


def as_given(text: str) -> str:
    """Return text with the bytes that `JsonModel` has escaped, so that it names its file again."""
    return re.sub(r"\\u(dc[89a-f][0-9a-f])", lambda found: chr(int(found[1], 16)), text)


def _escaped(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode(errors="backslashreplace").decode()
    if isinstance(value, list):
        return [_escaped(one) for one in value]
    if isinstance(value, dict):
        return {_escaped(key): _escaped(one) for key, one in value.items()}
    return value


class Spec(JsonModel):
    """Base of every specification: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Record(JsonModel):
    """Base of every stored record; fields of newer versions are kept out, not refused."""

    # Its check is built at its first use: most commands use few.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


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
