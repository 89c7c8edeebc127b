"""Values as people type them, and where each value of a command came from.

What a shell offers when Tab is pressed: names that exist here, else files.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from scalebench.errors import ScalebenchError, UsageError, unknown_name
from scalebench.launch.submission import LAUNCHERS
from scalebench.records.paths import config_file

MAX_SECONDS = 1e9
SMALLEST_MEMORY_BYTES = 10**6
LARGEST_MESSAGE_BYTES = 2**34
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}
_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}

Command = Callable[..., Any]
Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]

SCRIPT = "scalebench.script"
"""Where a context keeps the words of the user's script; None: there is no ``--``."""

WORDS = "scalebench.words"
"""Where it keeps those that stand before."""


class Value(click.ParamType):  # type: ignore[type-arg]
    """A value that a function makes of what was typed; it raises UsageError for what is none.

    Args:
        name: What the help calls it.
        parse: Makes the value of text.
        of_many: The value is a tuple; a file may give a list.
    """

    def __init__(self, name: str, parse: Callable[[str], Any], of_many: bool = False) -> None:
        self.name, self.parse, self.of_many = name, parse, of_many

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; one that was converted before stays as it is."""
        if isinstance(value, tuple):
            return value
        try:
            return self.parse(",".join(map(str, value)) if isinstance(value, list) else str(value))
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Count(click.IntRange):
    """A whole number of something, with a smallest and perhaps a largest one."""

    name = "COUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number."""
        try:
            return int(super().convert(value, param, ctx))
        except click.BadParameter:
            least, most = self.min, self.max
            valid = f"of at least {least}" if most is None else f"from {least} to {most}"
            self.fail(f"{str(value)!r} is not a whole number {valid}.", param, ctx)


class Name(click.Choice):  # type: ignore[type-arg]
    """One of some names; ``answers``: pattern → what to say to others that are often given."""

    def __init__(self, names: Sequence[str], answers: Mapping[str, str]) -> None:
        super().__init__(names)
        self.answers = answers

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        for pattern, answer in self.answers.items():
            if re.fullmatch(pattern, str(value)):
                self.fail(answer, param, ctx)
        return super().convert(value, param, ctx)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _world_sizes(text: str) -> tuple[int, ...]:
    from scalebench.spec.suites import parse_world_sizes

    return parse_world_sizes(text)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names:
        raise UsageError("it names nothing. Give for example ddp,fsdp.")
    return names


def _positive(text: str) -> float:
    number = _number(text)
    if not 0 < number < math.inf:
        raise UsageError(f"{text!r} is not a number above 0, for example 2.5.")
    return number


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip())
    if not match or match[2] not in _SECONDS or not 0 < float(match[1]) < MAX_SECONDS:
        raise UsageError(f"{text!r} is not a duration. Give for example 90s, 10m or 1h.")
    return float(match[1]) * _SECONDS[match[2]]


def _ratio(text: str) -> float:
    percent, plain = text.strip().removesuffix("%"), text.strip()
    number = _number(plain) if percent == plain else _number(percent) / 100
    if not 0 < number < 1:
        raise UsageError(
            f"{text!r} is not a fraction between 0 and 1. Give for example 0.02 or 2%."
        )
    return number


def _rate(text: str) -> int:
    from scalebench.spec.world import parse_rate

    return parse_rate(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d{1,15})([kmg]?i?)b?", text.strip().lower())
    if match is None or match[2] not in _BYTES or not int(match[1]):
        raise UsageError(f"{text!r} is not a size. Give bytes, for example 64k, 4Mi or 1Gi.")
    return int(match[1]) * _BYTES[match[2]]


def _memory_bytes(text: str) -> int:
    """Return bytes of a rank; one whose unit was forgotten is refused."""
    found, text = _bytes(text), text.strip()
    if found < SMALLEST_MEMORY_BYTES:
        meant = f" Did you mean {text}GB?" if text.isdigit() else ""
        raise UsageError(
            f"{text} is {found:,} bytes, less than any rank needs.{meant} Give for example "
            "200MB or 80GB."
        )
    return found


def _message_bytes(text: str) -> int:
    size = _bytes(text)
    if not 64 <= size <= LARGEST_MESSAGE_BYTES:
        raise UsageError(f"{text}: give a size from 64 B to 16Gi, so that there are sizes to fit.")
    return size


def _cpu_shares(text: str) -> tuple[float, ...]:
    from scalebench.spec.world import MIN_CPU_SHARE

    shares = tuple(map(_number, text.split(",")))
    for part, share in zip(text.split(","), shares, strict=True):
        if not MIN_CPU_SHARE <= share < math.inf:
            raise UsageError(
                f"{part!r} is not a share of a core. Give a number of at least "
                f"{MIN_CPU_SHARE:g}, for example 0.2, or one for each rank: 1,1,0.33."
            )
    return shares


WORLD_SIZES = Value("N,N,...", _world_sizes, of_many=True)
NAMES = Value("NAME,...", _names)
POSITIVE = Value("NUMBER", _positive)
DURATION = Value("DURATION", _seconds)
FRACTION = Value("FRACTION", _ratio)
MARGIN = Value("FRACTION", lambda text: 0.0 if text.strip() in ("0", "0%") else _ratio(text))
RATE = Value("RATE", _rate)
RATES = Value("RATE,...", lambda text: tuple(map(_rate, text.split(","))), of_many=True)
MEMORY_SIZE = Value("size", _memory_bytes)
MESSAGE_SIZE = Value("size", _message_bytes)
CPU_SHARES = Value("CORES", _cpu_shares, of_many=True)
"""Kinds of values: ``1,2,4``, ``ddp,fsdp``, ``2.5``, ``10m`` in seconds, ``2%``, ``50mbit`` in
bits per second, ``4Mi`` in bytes, ``0.2`` of a core for all ranks or one number for each."""


_SETTING = re.compile(r"[:,]([a-z_-]+)=([^:,]+)$")


def with_settings(text: str) -> tuple[Path, dict[str, str]]:
    """Return the path and the settings of ``path:name=value,name=value``."""
    own: dict[str, str] = {}
    while not Path(text).exists() and (found := _SETTING.search(text)):
        own.setdefault(found[1], found[2])
        text = text[: found.start()]
    return Path(text), own


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Declare an option that can also be set by environment variable and configuration file."""
    long = next(name for name in names if name.startswith("--")).partition("/")[0]
    variable = "SCALEBENCH_" + long[2:].replace("-", "_").upper()
    return click.option(*names, envvar=variable, **settings)


def options(*declared: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """Return what declares several options, in their order."""

    def declare(command: Command) -> Command:
        for one in reversed(declared):
            command = one(command)
        return command

    return declare


trust_network = option(
    "--trust-network",
    is_flag=True,
    help="Under torchrun, srun or mpirun: need no secret. Anyone who can reach the ranks' port "
    "can then run programs as you.",
)
as_run_launcher: dict[str, Any] = {
    "type": click.Choice(list(LAUNCHERS)),
    "help": "Same as for run.",
}
hosts_options = options(
    option("--ranks-per-host", type=Count(min=1), help="Ranks that share a virtual host. [1]"),
    option("--link-inter", type=RATE, help="Rate of the links between racks of virtual hosts."),
    option("--hosts-per-rack", type=Count(min=1), help="Virtual hosts behind one switch."),
)
_MIXED = (
    "all ranks of a launch are on devices of one kind: NCCL knows no CPU ranks, and over gloo each "
    "gradient of a GPU would go through the host's memory. Give cpu or cuda. For GPUs of unequal "
    "speed there is -k ddp-balanced."
)
device_option = option(
    "--device",
    type=Name(["auto", "cpu", "cuda"], {r"(cpu|cuda)\W(cpu|cuda)": _MIXED}),
    default="auto",
    help="[auto]",
)


def config_for(command: click.Command) -> dict[str, Any]:
    """Return the configured defaults of a command's options, by parameter name.

    Raises:
        UsageError: A key is not an option that can be configured.
    """
    found = config_file()
    if found is None:
        return {}
    path, table = found
    options = {
        str(p.name).replace("_", "-"): p for p in command.params if getattr(p, "envvar", None)
    }
    defaults = {}
    for key, value in table.items():
        if isinstance(value, dict):
            continue  # a table of another command
        name = key.replace("_", "-")
        if name not in options:
            raise unknown_name(f"setting in {path}:", key, options)
        if isinstance(value, list):
            if not getattr(options[name].type, "of_many", False):
                raise UsageError(f"{path}: {key} is one value, and a list was given.")
        elif not isinstance(value, bool) or options[name].type is not click.BOOL:
            value = str(value)  # as from an environment variable
        defaults[str(options[name].name)] = value
    return defaults


def value_sources(context: click.Context) -> list[tuple[str, str, str]]:
    """Return name, value and source of every configurable option of a command."""
    found = config_file()
    names = {
        "COMMANDLINE": "flag",
        "ENVIRONMENT": "environment",
        "DEFAULT_MAP": str(found[0]) if found else "file",
        "DEFAULT": "suite or built-in default",
    }
    rows = []
    for parameter in context.command.params:
        if not getattr(parameter, "envvar", None) or parameter.name is None:
            continue
        source = context.get_parameter_source(parameter.name)
        value = context.params[parameter.name]
        shown = ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
        where = names.get(source.name if source else "DEFAULT", "default")
        rows.append((parameter.name.replace("_", "-"), "—" if value is None else shown, where))
    return rows


def _offering(names: Callable[[click.Context], Iterable[str]]) -> Complete:
    def complete(
        context: click.Context, _: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        start = 1 + max(incomplete.rfind(" "), incomplete.rfind(","))  # the last word
        before, word = incomplete[:start], incomplete[start:]
        try:
            found = [name for name in names(context) if name.startswith(word)]
        except ScalebenchError:
            found = []
        items = [CompletionItem(before + name) for name in found]
        return items or [CompletionItem(incomplete, type="file")]

    return complete


def _suites(context: click.Context) -> Iterable[str]:
    from scalebench.session.suites import suite_files

    return [] if context.meta.get(SCRIPT) is not None else sorted(suite_files())


def _workloads(_: click.Context) -> Iterable[str]:
    from scalebench.spec.presets import PRESETS

    return PRESETS


def _cases(context: click.Context) -> Iterable[str]:
    """Return the cases of the suites that come with scalebench; others would be executed."""
    from scalebench.session.suites import core_suites, load_suites, own_suites, suite_files

    # Where -k has no value yet, click has not told suites from options.
    named = {*context.meta.get(WORDS, ())} & suite_files().keys() or {*core_suites()}
    bundled = sorted(named - own_suites().keys())
    return {case.name: 0 for suite in bundled for s in load_suites([suite]) for case in s.cases}


def _strategies(_: click.Context) -> Iterable[str]:
    from scalebench.session.suites import known_strategies, own_suites, suite_files

    return known_strategies(sorted(suite_files().keys() - own_suites().keys()))


def _runs(_: click.Context) -> Iterable[str]:
    from scalebench.records.folder import find_runs
    from scalebench.records.paths import baselines_folder, default_runs_folder

    runs = [run.name for run in find_runs(default_runs_folder())]
    return [*runs, *sorted(folder.name for folder in baselines_folder().glob("*/"))]


def _formats(_: click.Context) -> Iterable[str]:
    from scalebench.report.export import FORMATS

    return FORMATS


suites, workloads, cases = _offering(_suites), _offering(_workloads), _offering(_cases)
strategies = _offering(_strategies)
runs, formats = _offering(_runs), _offering(_formats)
