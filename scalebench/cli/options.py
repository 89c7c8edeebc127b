"""Values as people type them, and where each value of a command came from."""

import math
import re
import tomllib
from pathlib import Path
from typing import Any

import click

from scalebench.errors import UsageError, unknown_name

MAX_SECONDS = 1e9
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600}


class WorldSizes(click.ParamType):  # type: ignore[type-arg]
    """Numbers of ranks, separated by commas: ``1,2,4,8``."""

    name = "N,N,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return the sizes in rising order, each once."""
        if isinstance(value, tuple):
            return value
        from scalebench.spec.selection import parse_world_sizes

        text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        try:
            return parse_world_sizes(text)
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


class Names(click.ParamType):  # type: ignore[type-arg]
    """Names, separated by commas: ``ddp,fsdp``."""

    name = "NAME,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        """Return the names, each once, in their order."""
        if isinstance(value, tuple):
            return value
        names = tuple(dict.fromkeys(word.strip() for word in str(value).split(",") if word.strip()))
        if not names:
            self.fail("it names nothing. Give for example ddp,fsdp.", param, ctx)
        return names


class LauncherName(click.Choice):  # type: ignore[type-arg]
    """A launcher; Slurm's srun is none of them."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the name."""
        if value == "slurm":
            self.fail(
                "srun starts the ranks itself. In an allocation: srun scalebench run …, without "
                "--launcher; or scalebench submit --slurm.",
                param,
                ctx,
            )
        return super().convert(value, param, ctx)


class Positive(click.ParamType):  # type: ignore[type-arg]
    """A number above 0."""

    name = "NUMBER"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the number."""
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = 0.0
        if not 0 < number < math.inf:
            self.fail(f"{str(value)!r} is not a number above 0, for example 2.5.", param, ctx)
        return number


class Duration(click.ParamType):  # type: ignore[type-arg]
    """A duration: ``90``, ``90s``, ``10m``, ``1h``."""

    name = "DURATION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return seconds."""
        match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", str(value).strip())
        if not match or match[2] not in _SECONDS or not 0 < float(match[1]) < MAX_SECONDS:
            self.fail(f"{value!r} is not a duration. Give for example 90s, 10m or 1h.", param, ctx)
        return float(match[1]) * _SECONDS[match[2]]


class Fraction(click.ParamType):  # type: ignore[type-arg]
    """A fraction between 0 and 1: ``0.02`` or ``2%``."""

    name = "FRACTION"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Return the plain ratio."""
        text = str(value).strip()
        try:
            number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
        except ValueError:
            number = 0.0
        if not 0 < number < 1:
            self.fail(
                f"{value!r} is not a fraction between 0 and 1. Give for example 0.02 or 2%.",
                param,
                ctx,
            )
        return number


class Rates(click.ParamType):  # type: ignore[type-arg]
    """Rates of links: ``50mbit``, or several separated by commas."""

    name = "RATE,..."

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Return bits per second."""
        from scalebench.spec.virtual_hosts import parse_rate

        if isinstance(value, tuple):
            return value
        given = value if isinstance(value, list) else str(value).split(",")
        try:
            return tuple(parse_rate(str(part)) for part in given)
        except UsageError as error:
            self.fail(str(error), param, ctx)


class Rate(Rates):
    """The rate of one link: ``50mbit``."""

    name = "RATE"

    def convert(  # type: ignore[override]
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Return bits per second."""
        if isinstance(value, int):
            return value
        return super().convert([value], param, ctx)[0]


_BYTES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "ki": 2**10, "mi": 2**20, "gi": 2**30}


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes: ``4Mi``, ``64k``, ``200MB``, ``1000``."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        match = re.fullmatch(r"(\d{1,15})([kmg]?i?)b?", str(value).strip().lower())
        if match is None or match[2] not in _BYTES or not int(match[1]):
            self.fail(f"{value!r} is not a size. Give bytes, for example 64k, 4Mi or 1Gi.")
        return int(match[1]) * _BYTES[match[2]]


SMALLEST_MEMORY_BYTES = 10**6


class MemorySize(Size):
    """The memory of a rank; one whose unit was forgotten is refused."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        found = super().convert(value, param, ctx)
        if found < SMALLEST_MEMORY_BYTES:
            text = str(value).strip()
            meant = f" Did you mean {text}GB?" if text.isdigit() else ""
            self.fail(
                f"{text} is {found:,} bytes, less than any rank needs.{meant} Give for example "
                "200MB or 80GB.",
                param,
                ctx,
            )
        return found


class CpuShares(click.ParamType):  # type: ignore[type-arg]
    """A share of a core, or cores: ``0.2``, ``1.5``; or one for each rank: ``1,1,0.33``."""

    name = "CORES"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, ...]:
        """Return cores, one number for all ranks or one for each."""
        from scalebench.spec.virtual_hosts import MIN_CPU_SHARE

        if isinstance(value, tuple):
            return value
        given = value if isinstance(value, list) else str(value).split(",")
        shares = []
        for part in given:
            try:
                share = float(str(part))
            except ValueError:
                share = 0.0
            if not MIN_CPU_SHARE <= share < math.inf:
                self.fail(
                    f"{part!r} is not a share of a core. Give a number of at least "
                    f"{MIN_CPU_SHARE:g}, for example 0.2, or one for each rank: 1,1,0.33.",
                    param,
                    ctx,
                )
            shares.append(share)
        return tuple(shares)


def config_file() -> tuple[Path, dict[str, Any]] | None:
    """Return the configuration of this folder, or None: scalebench.toml before pyproject.toml.

    Raises:
        UsageError: The file is not TOML.
    """
    for path, keys in (
        (Path("scalebench.toml"), ()),
        (Path("pyproject.toml"), ("tool", "scalebench")),
    ):
        if not path.is_file():
            continue
        try:
            table = tomllib.loads(path.read_text(encoding="utf-8"))
        except (
            OSError,
            ValueError,
            RecursionError,
        ) as error:  # no text, no TOML, nested too deeply
            raise UsageError(f"{path} cannot be read: {error}.") from error
        for key in keys:
            table = table.get(key, {})
            if not isinstance(table, dict):
                raise UsageError(f"{path}: [{'.'.join(keys)}] must be a table, but {key} is not.")
        if table:
            return path, table
    return None


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
            if not isinstance(options[name].type, WorldSizes | Rates | CpuShares):
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
