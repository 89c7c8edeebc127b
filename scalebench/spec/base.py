"""What all specifications share: nothing unknown, nothing changed later, plain JSON."""

import re
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticSerializationError, to_json

Scaling = Literal["strong", "weak"]
Device = Literal["cpu", "cuda"]
FloatDtype = Literal["float32", "bfloat16"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=64)]


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
