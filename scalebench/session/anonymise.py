"""Taking out of a run whose machine it was made on: names of hosts and users, and paths.

Only what may hold them is touched, and its numbers never are: text that people and programs have
written, and the fields that name a host.
"""

import getpass
import os
import platform
import re
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)

TEXT_FIELDS = frozenset(
    {
        *(
            "host",
            "hosts",
            "command",
            "code",
            "folder",
            "notices",
            "damaged",
            "directory",
            "environment",
            "facts",
            "message",
            "reason",
        ),
        *("traceback", "log_tail", "trace_unavailable", "unavailable", "stepped", "devices"),
    }
)
"""Fields that hold texts, or more fields that do; all others are kept as they are."""


_HOMES = re.compile(r"/(?:home|Users)/[^/\s\"':,]+")
_ELSEWHERE = re.compile(
    r"(?<![\w.<>:/-])/(?!(?:proc|sys|dev|usr|lib\w*|etc)/)[\w.+@~=-]+(?:/[\w.+@~=-]+)+"
)
"""An absolute path of two names or more, outside of what every system has."""


class Anonymiser:
    """Replaces names by what they stand for, such as ``<host>``, ``<user>`` and ``<home>``.

    Args:
        names: What is to be replaced → what stands for it; longer ones are replaced first.
    """

    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = {name: stands for name, stands in names.items() if len(name) > 1}
        longest_first = sorted(self.names, key=len, reverse=True)
        anything = "|".join(map(re.escape, longest_first)) or "(?!)"
        self.pattern = re.compile(rf"(?<![\w.-])(?:{anything})(?![\w])")

    def text(self, text: str) -> str:
        """Return a text without the names, and without absolute paths of this machine's own.

        What is below a known place keeps its place's name: ``<home>/model.py``. Any other path
        becomes ``<path>`` whole; those that every system has, such as ``/dev/shm``, stay.
        """
        known = self.pattern.sub(lambda match: self.names[match[0]], text)
        return _ELSEWHERE.sub("<path>", _HOMES.sub("<home>", known))

    def model(self, model: Model) -> Model:
        """Return a record without the names."""
        return type(model).model_validate(self._below(model.model_dump(mode="json"), False))

    def _below(self, value: Any, in_text: bool) -> Any:
        if isinstance(value, dict):
            return {k: self._below(v, in_text or k in TEXT_FIELDS) for k, v in value.items()}
        if isinstance(value, list):
            return [self._below(item, in_text) for item in value]
        return self.text(value) if in_text and isinstance(value, str) else value


def names_of_this_machine(hosts: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what names this machine, its user and places on it.

    Args:
        hosts: Other machines of the run → what stands for each.
    """
    host = platform.node()
    names = {
        host: "<host>",
        host.partition(".")[0]: "<host>",
        os.getcwd(): "<folder>",
        tempfile.gettempdir(): "<temporary>",
        os.path.expanduser("~"): "<home>",
        sys.prefix: "<python>",
        sys.base_prefix: "<python>",
        str(Path(__file__).resolve().parents[2]): "<scalebench>",
    }
    with suppress(OSError, KeyError):  # a user without a name
        names[getpass.getuser()] = "<user>"
    return {name: stands for name, stands in names.items() if name != "/"} | dict(hosts or {})


def anonymise_files(folder: Path, anonymiser: Anonymiser) -> None:
    """Take the names out of every file in a folder, and in those below it."""
    for path in folder.rglob("*"):
        if path.is_file():
            text = path.read_text(encoding="utf-8", errors="replace")
            path.write_text(anonymiser.text(text), encoding="utf-8")
