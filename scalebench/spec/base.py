"""What all specifications share: nothing unknown, nothing changed later, plain JSON."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Scaling = Literal["strong", "weak"]
Device = Literal["cpu", "cuda"]
FloatDtype = Literal["float32", "bfloat16"]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+([._-][a-z0-9]+)*$", max_length=64)]


class Spec(BaseModel):
    """Base of every specification: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")
