"""Refuses a launcher inside the script: its ranks would be ranks of every rank, and unwatched."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import dropwhile
from pathlib import PurePath
from types import CodeType, FunctionType
from typing import Any

from scalebench.worker.attach import interface
from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.problems import SPAWNS, STARTS_RANKS, ScriptProblem

PROGRAMS = ("torchrun", "deepspeed", "horovodrun", "accelerate-launch")
MODULES = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
OF_RANKS = {"init_process_group", "init_rpc", "backward"}
"""What a process calls that is a rank: those of Hogwild and of torch's RPC make no group."""

_SETTING = re.compile(r"[A-Za-z_]\w*=")
ELASTIC = "TORCHELASTIC_RUN_ID"
"""Names the job of a rank: the ranks of a torchrun inside the script have another one."""


def refuse_launchers() -> None:
    """Raise `ScriptProblem` in whatever starts a launcher before the first step; see PEP 578."""

    def hear(event: str, given: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen":
            _, words, _, env = given
            found = launched(_words(words), env or {})
        elif event in ("os.exec", "os.posix_spawn"):
            _, words, env = given
            found = launched(_words(words), env or {})
        elif event == "os.system":
            found = launched(_words(given[0]), {})
        else:
            return
        if found and not getattr(interface.watch, "num_calls", 0):
            launcher, script = found
            raise ScriptProblem(STARTS_RANKS.format(launcher=launcher, script=script))

    sys.addaudithook(hear)
    after_import_of("multiprocessing.process", _refuse_ranks)


def _refuse_ranks() -> None:
    process = sys.modules["multiprocessing.process"].BaseProcess
    start = process.start

    def start_other(self: Any) -> None:
        given = (getattr(self, "_target", None), *getattr(self, "_args", ()), type(self).run)
        if not getattr(interface.watch, "num_calls", 0) and any(map(is_rank_of_its_own, given)):
            raise ScriptProblem(SPAWNS)
        start(self)

    process.start = start_other


def is_rank_of_its_own(function: Any, calls: int = 3) -> bool:
    """Tell whether a function trains or makes a group of ranks, or one that it calls does."""
    function = getattr(function, "func", function)  # of a partial
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    names = set(_names_in(code)) if isinstance(code, CodeType) else set()
    called = [known.get(name) for name in names] if calls else []
    return bool(names & OF_RANKS) or any(
        is_rank_of_its_own(one, calls - 1) for one in called if isinstance(one, FunctionType)
    )


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _names_in(part)


def launched(words: Sequence[str], env: Mapping[Any, Any]) -> tuple[str, str] | None:
    """Return the launcher that a command starts, and the script behind it; None: it starts none.

    ``env`` empty: this process's environment.
    """
    for i, word in enumerate(words):
        name = PurePath(word).name
        is_accelerate = name == "accelerate" and words[i + 1 : i + 2] == ["launch"]
        if is_accelerate or (i == 0 and name in PROGRAMS) or (words[:i][-1:] == ["-m"] and
                                                              word in MODULES):  # fmt: skip
            return ("accelerate launch" if is_accelerate else name), _script(words[i + 1 :])
        if word.endswith(".py") and name not in PROGRAMS:
            break
    env = {_text(key): _text(value) for key, value in env.items()}
    if "RANK" in env and env.get(ELASTIC, os.environ.get(ELASTIC)) != os.environ.get(ELASTIC):
        return "torchrun", _script(words)
    return None


def _script(words: Sequence[str]) -> str:
    place = next((i for i, word in enumerate(words) if word.endswith(".py")), None)
    return "train.py" if place is None else shlex.join(words[place:])


def _words(command: Any) -> list[str]:
    text = isinstance(command, (str, bytes))
    words = _text(command).split() if text else [_text(word) for word in command]
    shell = words[:1] in (["/bin/sh"], ["sh"], ["bash"]) and words[1:2] == ["-c"]
    words = words[2].split() if shell and words[2:] else words
    return list(dropwhile(lambda word: word in ("env", "exec") or _SETTING.match(word), words))


def _text(value: Any) -> str:
    return os.fsdecode(value)
