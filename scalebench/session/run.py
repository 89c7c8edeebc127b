"""The Python door: `scalebench.run` measures suites and returns the run."""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError, unknown_name
from scalebench.session.launches.cell_runner import ProgressListener
from scalebench.session.plan import Request
from scalebench.session.plan.request import option_of
from scalebench.session.session import Session
from scalebench.session.storing.finish import Run
from scalebench.session.suites.files import load_suites
from scalebench.spec import Suite

_SWITCHES: dict[tuple[str, object], list[str]] = {
    ("autocast", True): ["--dtype", "bfloat16"],
    ("autocast", False): ["--dtype", "float32"],
    ("autocast", "float16"): ["--dtype", "float16"],
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
    if (name, value) in _SWITCHES:
        return _SWITCHES[name, value]
    option = option_of(name)
    if isinstance(value, bool):
        return [option]
    if name == "only" and isinstance(value, tuple):
        return [word for row in value for word in (option, row)]
    return [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def run(
    suites: Suite | str | Sequence[Suite | str] = (),
    world_sizes: Sequence[int] | None = None,
    *,
    script: Sequence[str] | None = None,
    samples_per_step: str | int | None = None,
    out: Path | str | None = None,
    request: Request | None = None,
    **options: Any,
) -> Run:
    """Measure suites, or your own script, at the given numbers of ranks and return the run.

    Args:
        suites: Suites, or names or paths of suites; none: the core suites.
        world_sizes: Numbers of ranks; None: 1, 2, 4, … up to the devices.
        script: In place of suites: the words of your own script, ``["train.py", "--lr", "0.1"]``.
        samples_per_step: Of the script, for the whole job, as ``--samples-per-step``.
        out: The run folder; None: a new one below ``reports/``.
        request: Everything else that the command line can say, as one object.
        options: The same by name: ``batch_size=32``, ``steps=20``, ``workload="gpt"``; see
            `scalebench.Request`.

    Raises:
        UsageError: The request cannot be met as it stands.
        EnvironmentUnfit: This machine cannot meet it.
    """
    wanted = _with_options(request or Request(), options)
    if world_sizes is not None:
        wanted = _with_sizes(wanted, world_sizes)
    given: Sequence[Suite | str] = [suites] if isinstance(suites, Suite | str) else list(suites)
    if script is not None:
        loaded, wanted = _of_script(script, given, samples_per_step, wanted)
        given = loaded
    else:
        loaded = [s for one in given for s in ([one] if isinstance(one, Suite) else _named(one))]
    folder = None if out is None else Path(out)
    with Session(ProgressListener()) as session:
        return session.run(wanted, loaded or load_suites(()), command_of(given, wanted), folder)


def _with_options(request: Request, options: dict[str, Any]) -> Request:
    names = [field.name for field in fields(Request)]
    for name in options:
        if name not in names:
            raise unknown_name("option of scalebench.run()", name, names)
    return replace(request, **options)


def _of_script(
    words: Sequence[str], suites: Sequence[Any], samples: str | int | None, request: Request
) -> tuple[list[Suite], Request]:
    """Return the suite of a script, and the request without what the suite has."""
    from scalebench.session.suites.script import script_suite

    flags = {
        **{field.name: getattr(request, field.name) for field in fields(Request)},
        **{"suites": suites, "python": None, "to_the_end": False},
        "samples_per_step": None if samples is None else str(samples),
    }
    return [script_suite(list(words), flags)], replace(request, scaling=None)


def _named(name: str) -> list[Suite]:
    return load_suites([name])


def _with_sizes(request: Request, world_sizes: Sequence[int]) -> Request:
    sizes = tuple(world_sizes)
    if not sizes or any(not isinstance(n, int) or n < 1 for n in sizes):
        raise UsageError(f"world_sizes={list(sizes)}: give whole numbers of at least 1.")
    return replace(request, world_sizes=sizes)
