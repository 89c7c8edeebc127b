"""The command line that asks for what a `Request` asks for."""

import sys
from collections.abc import Sequence
from dataclasses import fields

from scalebench.session.plan import Request
from scalebench.spec import Suite

_NAMES = {
    "world_sizes": "--gpus",
    "selection": "-k",
    "time_limit_s": "--time-limit",
    "budget_s": "--budget",
    "memory_limit_bytes": "--memory-limit",
}
"""Options with another name than the field's, for values and for ``True``."""

_SWITCHES = {
    ("autocast", True): ["--dtype", "bfloat16"],
    ("autocast", False): ["--dtype", "float32"],
    ("compile", False): ["--no-compile"],
    ("shared", False): ["--isolated"],
    ("pinned", False): ["--unpinned"],
    ("trace", False): ["--no-trace"],
}
_NO_OPTION = ("threads", "notices", "virtual_hosts")


def command_of(suites: Sequence[Suite | str], request: Request) -> list[str]:
    """Return the words that repeat a call of `scalebench.run`.

    A suite that is a Python object has no name that ``scalebench run`` knows: only the program
    that made it does so again.
    """
    if any(isinstance(suite, Suite) for suite in suites):
        return ["python", *sys.orig_argv[1:]]
    words = ["scalebench", "run", *map(str, suites)]
    for field in fields(Request):
        value = getattr(request, field.name)
        if value != field.default and field.name not in _NO_OPTION:
            words += _option(field.name, value)
    return words


def _option(name: str, value: object) -> list[str]:
    if isinstance(value, bool) and (name, value) in _SWITCHES:
        return _SWITCHES[name, value]
    option = _NAMES.get(name, f"--{name.replace('_', '-')}")
    if isinstance(value, bool):
        return [option]
    if name == "only" and isinstance(value, tuple):
        return [word for row in value for word in (option, row)]
    return [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]
