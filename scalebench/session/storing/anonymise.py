"""What a run does not store: secrets never, and with ``--anonymise`` whose machine it was made on.

Every text of every record and log is looked at; numbers, and the words that scalebench itself
chose, are never touched.
"""

import getpass
import ipaddress
import os
import platform
import re
import shlex
import stat
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel

import scalebench
from scalebench.errors import UsageError
from scalebench.records.run import CellResult, RunInfo
from scalebench.records.secret import (
    MASK,
    secret_values,
    without_secrets,
    words_without_secrets,
)
from scalebench.spec.script import ScriptTarget

Model = TypeVar("Model", bound=BaseModel)

ARGUMENT, SCRIPT, ADDRESS = "<argument>", "<script>", "<address>"
SHORTEST_SECRET = 4
SHORTEST_ARGUMENT = 6
"""A shorter one is taken out of the command alone: in other texts it may be any word."""

OUR_WORDS = frozenset(
    {
        *("format", "id", "version", "created", "started", "run_id", "suite", "case", "strategy"),
        *("kind", "phase", "shared_with", "backend", "device", "op", "law", "algorithm", "dtype"),
        *("launcher", "link"),
    }
)
"""Fields whose texts scalebench has chosen: a user who is called like one of them breaks no run."""

_HOMES = re.compile(r"/(?:home|Users)/[^/\s\"':,]+")
_ELSEWHERE = re.compile(
    r"(?<![\w.<>/-])/(?!(?:proc|sys|dev|usr|lib\w*|etc)/)[\w.+@~=-]+(?:/[\w.+@~=-]+)+"
)
"""An absolute path of two names or more, outside of what every system has."""

_ADDRESSES = re.compile(
    r"(?:(?<![A-Za-z0-9.])\d{1,3}(?:\.\d{1,3}){3}|(?<![\w:.])[0-9A-Fa-f]{0,4}"
    r"(?::[0-9A-Fa-f]{0,4}){2,}(?:(?<=:)\d{1,3}(?:\.\d{1,3}){3})?)(?![A-Za-z0-9]|\.[0-9])"
)
_LABEL = r"<(?:host(?: \d+)?|user|home|folder|temporary|python|scalebench|path|address)>"
_SETTING = re.compile(r"(--?[\w.-]+|[\w.-]+)=(.*)", re.DOTALL)
_PLAIN = re.compile(r"-{1,2}[A-Za-z][\w.-]*|[-+]?[\d.,]+(?:e[-+]?\d+)?|\{\w+\}|<.*>|\*{3}|", re.I)
"""Words of a script's arguments that name no one: options, numbers, placeholders."""


class Cleaner:
    """Takes secrets out of what is stored, and names where that is asked for.

    ``names``: what is to be replaced → what stands for it, such as ``<host>``; longer ones are
    replaced first. None: names stay. ``command``: the words of the command line.
    """

    def __init__(
        self,
        names: Mapping[str, str] | None = None,
        script: ScriptTarget | None = None,
        command: Sequence[str] = (),
    ) -> None:
        self.anonymises = names is not None
        self.script = script
        arguments = script.arguments if script is not None else ()
        secrets = secret_values(command) | secret_values(arguments)
        self.names = {name: MASK for name in secrets if len(name) >= SHORTEST_SECRET}
        if names is not None:
            known = {name: label for name, label in names.items() if len(name) > 1}
            self.names = {**_names_of_script(script), **known, **self.names}
        self._compile()

    def _compile(self) -> None:
        self._labels = {name.lower(): label for name, label in self.names.items()}
        longest_first = sorted(self.names, key=len, reverse=True)
        words = "|".join(re.escape(n) for n in longest_first if not n.startswith("/")) or "(?!)"
        paths = "|".join(re.escape(n) for n in longest_first if n.startswith("/")) or "(?!)"
        self._pattern = re.compile(
            rf"{_LABEL}|(?:(?<![\w.-])(?P<path>{paths})|(?<![A-Za-z0-9])(?P<word>{words}))"
            r"(?![A-Za-z0-9])(?P<domain>(?:\.[A-Za-z0-9-]+)*)",
            re.IGNORECASE,
        )
        self._cleaned = lru_cache(maxsize=1 << 14)(self._clean)

    def text(self, text: str) -> str:
        """Return a text without secrets and names, and without paths of this machine's own.

        What is below a known place keeps its place's name: ``<home>/model.py``. Any other path
        becomes ``<path>`` whole; those that every system has, such as ``/dev/shm``, stay.
        """
        return self._cleaned(text)

    def _clean(self, text: str) -> str:
        masked = self._pattern.sub(self._replaced, without_secrets(text))
        if not self.anonymises:
            return masked
        placed = _ELSEWHERE.sub("<path>", _HOMES.sub("<home>", masked))
        return _ADDRESSES.sub(_without_address, placed)

    def _replaced(self, found: "re.Match[str]") -> str:
        name = found["path"] or found["word"]
        if name is None:  # a label
            return found[0]
        label = self._labels[name.lower()]
        return label + ("" if label.startswith("<host") else found["domain"])

    def model(self, model: Model) -> Model:
        """Return a record as it is stored; the same object where nothing was to be taken out."""
        if self.anonymises and isinstance(model, CellResult):
            self._learn(rank.host for rank in model.ranks)
        cleaned: Model = self._below(model)
        return cleaned

    def _learn(self, hosts: Iterable[str]) -> None:
        """Take out the names of the machines on which ranks ran, too."""
        for host in hosts:
            short = host.partition(".")[0]
            if {host.lower(), short.lower()}.isdisjoint(self._labels) and not host.startswith("<"):
                number = sum(label.startswith("<host ") for label in self.names.values()) + 1
                self.names[short] = f"<host {number}>"
                self._compile()

    def _below(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, BaseModel):
            return self._record(value)
        if isinstance(value, dict):
            found = {self._key(k): self._below(v) for k, v in value.items()}
            return value if found == value else found
        if isinstance(value, list | tuple) and not all(isinstance(v, int | float) for v in value):
            words = value
            if all(isinstance(v, str) for v in value):
                words = words_without_secrets(value)
            items = [self._below(item) for item in words]
            return value if items == [*value] else type(value)(items)
        return value

    def _key(self, key: Any) -> Any:
        return key if not isinstance(key, str) or key.isidentifier() else self.text(key)

    def _record(self, record: BaseModel) -> BaseModel:
        changes: dict[str, Any] = {}
        if self.anonymises:
            changes = self._without_script(record)
            record = record.model_copy(update=changes) if changes else record
        for name in _free_fields(type(record)):
            old = getattr(record, name)
            new = old if name in OUR_WORDS and not isinstance(old, BaseModel) else self._below(old)
            if new is not old:
                changes[name] = new
        return record.model_copy(update=changes) if changes else record

    def _without_script(self, record: BaseModel) -> dict[str, Any]:
        """Return the fields that hold a command of the user's, without whose it is."""
        if isinstance(record, ScriptTarget):
            arguments = tuple(map(_without_value, record.arguments))
            return {"program": SCRIPT, "arguments": arguments}
        if isinstance(record, RunInfo) and self.script is not None and "--" in record.command:
            place = record.command.index("--") + 1
            program = self.script.program
            words = [SCRIPT if w == program else _without_value(w) for w in record.command[place:]]
            return {"command": [*record.command[:place], *words]}
        return {}

    def files(self, folder: Path) -> None:
        """Clean every file in a folder, and in those below it; what is no file is left alone."""
        for path in folder.rglob("*"):
            if stat.S_ISREG(path.lstat().st_mode):
                self._file(path)

    def _file(self, path: Path) -> None:
        """Clean a file, line by line: a log may be large."""
        with path.open(encoding="utf-8", errors="replace", newline="") as lines:
            if all(self._clean(line) == line for line in lines):
                return
            lines.seek(0)
            with tempfile.NamedTemporaryFile(
                "w", dir=path.parent, encoding="utf-8", newline="", delete=False
            ) as cleaned:
                cleaned.writelines(map(self._clean, lines))
        os.replace(cleaned.name, path)


@lru_cache
def _free_fields(kind: type[BaseModel]) -> tuple[str, ...]:
    """Return the fields of a record that may hold texts of others: no fixed words, no names.

    The name of a suite or a case has a pattern, which no path, address or domain matches.
    """
    return tuple(
        name
        for name, field in kind.model_fields.items()
        if "Literal[" not in repr(field.annotation)
        and not any(getattr(one, "pattern", None) for one in field.metadata)
    )


def _without_value(word: str) -> str:
    """Return a word of a script's arguments without what may name somebody or something."""
    setting = _SETTING.fullmatch(word)
    if setting is not None:
        return f"{setting[1]}={_without_value(setting[2])}"
    return word if _PLAIN.fullmatch(word) else ARGUMENT


def _names_of_script(script: ScriptTarget | None) -> dict[str, str]:
    """Return how a script is called in texts: by its path, its interpreter, its arguments."""
    if script is None:
        return {}
    values = [_SETTING.sub(r"\2", word) for word in script.arguments]
    names = {v: ARGUMENT for v in values if len(v) >= SHORTEST_ARGUMENT and not _PLAIN.fullmatch(v)}
    if not script.module:
        path = script.program
        names |= dict.fromkeys((path, os.path.abspath(path), os.path.basename(path)), SCRIPT)
    elif "." in script.program:
        names[script.program] = SCRIPT
    return names | ({script.python: "<python>"} if os.sep in script.python else {})


def _without_address(found: "re.Match[str]") -> str:
    """Return what stands for an address; a time of day, and loopback, are none of a machine."""
    try:
        address = ipaddress.ip_address(found[0])
    except ValueError:
        return found[0]
    return found[0] if address.is_loopback or address.is_unspecified else ADDRESS


def names_of_this_machine(hosts: Collection[str] = ()) -> dict[str, str]:
    """Return what names this machine, its user and places on it → what stands for it."""
    names = {
        os.getcwd(): "<folder>",
        tempfile.gettempdir(): "<temporary>",
        os.path.expanduser("~"): "<home>",
        sys.prefix: "<python>",
        sys.base_prefix: "<python>",
        str(Path(scalebench.__file__).resolve().parents[1]): "<scalebench>",
    }
    others = {host: f"<host {number}>" for number, host in enumerate(hosts, 1)}
    named = {**others, platform.node(): "<host>"}
    names |= {host.partition(".")[0]: label for host, label in named.items()}
    with suppress(OSError, KeyError):  # a user without a name
        names |= {getpass.getuser(): "<user>"}
    return {name: label for name, label in names.items() if name not in ("/", "root", "localhost")}


def script_of(info: RunInfo) -> ScriptTarget | None:
    """Return the user's own script that a run measures; None: there is none."""
    return next((suite.script for suite in info.spec.suites if suite.script is not None), None)


def with_script(info: RunInfo, given: ScriptTarget | None, root: Path) -> RunInfo:
    """Return a stored run as it can be carried on: with what of its script was not stored.

    Raises:
        UsageError: The script has to be given again, or is not that of the run.
    """
    stored = script_of(info)
    hidden = stored is not None and (info.spec.anonymise or MASK in " ".join(stored.arguments))
    if stored is None or not hidden:
        if given is not None:
            raise UsageError(
                "--resume continues a run as it was planned: leave out the suite or script, and "
                "--out."
            )
        return info
    again = f"scalebench run --resume {root} -- {shlex.join(_words(stored))}"
    if given is None:
        raise UsageError(
            f"{root} does not hold the whole command of its script: secrets and, with --anonymise, "
            f"names are not stored. Give the script again: {again}."
        )
    script = stored.model_copy(
        update={name: getattr(given, name) for name in ("program", "module", "arguments", "python")}
    )
    names = names_of_this_machine() if info.spec.anonymise else None
    if _words(Cleaner(names, script).model(script)) != _words(stored):
        raise UsageError(
            f"{shlex.join(words_without_secrets(_words(given)))} is not the script of {root}. Give "
            f"what it was started with: {again}."
        )
    suites = [
        s if s.script is None else s.model_copy(update={"script": script}) for s in info.spec.suites
    ]
    plan = [
        cell.model_copy(update={"workload": script})
        if isinstance(cell.workload, ScriptTarget)
        else cell
        for cell in info.plan
    ]
    spec = info.spec.model_copy(update={"suites": tuple(suites)})
    code = [file.model_copy(update={"name": script.shown}) for file in info.code]
    return info.model_copy(update={"spec": spec, "plan": plan, "code": code})


def _words(script: ScriptTarget) -> list[str]:
    return [*(["-m"] if script.module else []), script.program, *script.arguments]
