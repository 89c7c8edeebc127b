"""What all records are: frozen, strict about their fields, with sizes that have an upper limit."""

from pydantic import ConfigDict

from scalebench.spec.base import JsonModel

LARGE = 1 << 60
"""No count of bytes, parameters or tokens in a record reaches this; a file that says so lies."""


class Record(JsonModel):
    """Base of every stored record; fields of newer versions are kept out, not refused."""

    # Its check is built at its first use: most commands use few.
    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)
