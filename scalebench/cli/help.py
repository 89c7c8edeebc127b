"""Help that can be found by topic, and what people type at first: the command that they mean."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

import click

from scalebench.cli.view import emit
from scalebench.errors import UsageError, unknown_name

GROUPS: Mapping[str, Sequence[str]] = {
    "What people need first": (
        *("gpus", "workload", "strategies", "batch-size", "quick", "steps", "precision", "budget"),
        *("out", "dry-run"),
    ),
    "What is trained": (
        *("scaling", "dtype", "compile", "max-batch", "memory-limit", "target-loss", "k"),
        *("only",),
    ),
    "Your own script": ("samples-per-step", "python", "to-the-end", "changed-script"),
    "Ranks and machine": (
        *("device", "oversubscribe", "launcher", "trust-network", "shared", "pinned", "keep-going"),
        *("allow-busy", "link-profile"),
    ),
    "How long": ("repeats", "time-limit"),
    "Where results go": (
        *("resume", "checkpoint-dir", "log-to", "no-trace", "no-report", "anonymise", "verbose"),
        *("json", "show-config", "help"),
    ),
    "Virtual hosts": (
        *("link-intra", "cpus-per-rank", "ranks-per-host", "link-inter", "hosts-per-rack"),
    ),
}
"""Section of ``run --help`` → its options, in their order."""
NUMBERS_OF_RANKS = (
    *("--nproc", "--nprocs", "--nproc-per-node", "--np", "-np", "-n", "--ngpus", "--num-gpus"),
    *("--num-processes", "--world-size", "--ranks", "--gpu"),
)
ALSO_CALLED = {**dict.fromkeys(NUMBERS_OF_RANKS, "--gpus"), "--model": "--workload", "--suite": ""}
"""Option of others → that of ``run``; empty: ``run`` takes the value without an option."""


class Grouped(click.Command):
    """A command whose help lists its options in `GROUPS`; what is in none of them comes last."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        lines = {max(p.opts, key=len).lstrip("-"): p.get_help_record(ctx) for p in options}
        for title, names in GROUPS.items():
            found = [lines.pop(name) for name in names if name in lines]
            with formatter.section(title):
                formatter.write_dl([line for line in found if line])
        if rest := [line for line in lines.values() if line]:
            with formatter.section("More"):
                formatter.write_dl(rest)


class WholeSummaries(click.Group):
    """A group whose help cuts off no command's summary."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write each command with the first sentence of its help."""
        below = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        lines = [(name, one.get_short_help_str(500)) for name, one in below.items() if one]
        with formatter.section("Commands"):
            formatter.write_dl(lines)


@click.command("help")
@click.argument("topic", nargs=-1)
@click.pass_context
def help_(context: click.Context, topic: tuple[str, ...]) -> None:
    """Explain a command, a word of the tables or a field of summary.json.

    TOPIC is for example run, efficiency, "strong scaling", oversubscribed or wait_s. Without it,
    all of them are listed.
    """
    from scalebench.report.words.terms import explanations

    root = context.find_root()
    assert isinstance(root.command, click.Group)
    commands, words, asked = root.command.commands, explanations(), " ".join(topic)
    if asked in commands:
        inner = click.Context(commands[asked], info_name=asked, parent=root)
        emit(commands[asked].get_help(inner))
    elif asked in words:
        formatter = context.make_formatter()
        formatter.write_text(words[asked])
        emit(formatter.getvalue().rstrip())
    elif not asked:
        formatter = context.make_formatter()
        for title, names in (("Commands", commands), ("Words and fields", words)):
            with formatter.section(title):
                formatter.write_text(", ".join(sorted(names)))
        emit(formatter.getvalue().strip())
    else:
        told, _, _ = str(unknown_name("topic", asked, {**commands, **words})).partition(" Valid: ")
        raise UsageError(f"{told} All topics: scalebench help.")


def meant_by_option(words: Sequence[str], run: click.Command, given: str) -> UsageError | None:
    """Return the error for an option that ``run`` does not have; None: its meaning is not known."""
    options = _options(run)
    end = words.index("--") if "--" in words else len(words)
    right: list[str] = []
    before = iter(words[:end])
    given_by_name = {word.partition("=")[0] for word in words[:end]} & options.keys()
    for word in before:
        name, equals, value = word.partition("=")
        dashed = name[:2] + name[2:].replace("_", "-") if name.startswith("-") else name
        known = dashed if dashed in options else ALSO_CALLED.get(dashed)
        if known is None or name in options:
            right.append(word)
        elif known in given_by_name:  # it is given by its own name as well: that stands
            if not equals:
                next(before, None)
        elif known or value:
            right.append(f"{known}{equals if known else ''}{value}")
    right += words[end:]
    if right == [*words]:
        return None
    return UsageError(f"There is no option {given}. Write: scalebench run {shlex.join(right)}.")


def meant_by_script(words: Sequence[str], run: click.Command) -> UsageError | None:
    """Return the error for a script without ``--`` before it; None: there is no script."""
    from scalebench.spec.script import LAUNCHERS, without_launcher

    options = _options(run)
    place = _where_a_script_begins(words, options)
    if place is None:
        return None
    own, rest = list(words[:place]), list(words[place:])
    if PurePath(rest[0]).name in LAUNCHERS:
        script = without_launcher(rest[1:])
    else:
        of_run, rest = _apart(rest, options)
        own, script = own + of_run, f"-- {shlex.join(rest)}"
    return UsageError(
        "Your own script stands after --, and scalebench's options before it: "
        f"{shlex.join(['scalebench', 'run', *own])} {script}."
    )


def meant_by_command(words: Sequence[str], commands: Mapping[str, click.Command]) -> UsageError:
    """Return the error for a command that there is not: often it is a script, or a suite."""
    from scalebench.session.suites import suite_files

    by_script = meant_by_script(words, commands["run"])
    if by_script is not None:
        return by_script
    if words[0] in suite_files() or Path(words[0]).suffix == ".py":
        return UsageError(f"A suite is measured by run: scalebench run {shlex.join(words)}.")
    return unknown_name("command", words[0], commands)


def _options(run: click.Command) -> dict[str, click.Option]:
    options = [option for option in run.params if isinstance(option, click.Option)]
    return {name: o for o in options for name in (*o.opts, *o.secondary_opts)}


def _where_a_script_begins(words: Sequence[str], options: Mapping[str, click.Option]) -> int | None:
    is_value = False
    for place, word in enumerate(words):
        option = options.get(word)
        if is_value:
            is_value = False
        elif option is not None:
            is_value = not option.is_flag
        elif _begins_a_script(word):
            return place
    return None


def _begins_a_script(word: str) -> bool:
    from scalebench.session.suites import names_a_suite
    from scalebench.spec.script import INTERPRETER, LAUNCHERS

    name = PurePath(word).name
    if word == "-m" or name in LAUNCHERS or INTERPRETER.fullmatch(name):
        return True
    return name.endswith(".py") and Path(word).is_file() and not names_a_suite(Path(word))


def _apart(rest: Sequence[str], options: Mapping[str, click.Option]) -> tuple[list[str], list[str]]:
    """Divide words behind a script into options of ``run`` that it does not mention, and its own.

    Of a script that cannot be read all are its own.
    """
    file = next((Path(word) for word in rest if word.endswith(".py")), Path())
    text = file.read_text(errors="replace") if file.is_file() else None
    of_run: list[str] = []
    of_script: list[str] = []
    words = iter(rest)
    for word in words:
        name, equals, _ = word.partition("=")
        option = options.get(name) if name.startswith("--") else None
        if option is None or text is None or name[2:].replace("-", "_") in text or name in text:
            of_script.append(word)
            continue
        of_run.append(word)
        if not equals and not option.is_flag:
            of_run += [value for value in (next(words, None),) if value is not None]
    return of_run, of_script
