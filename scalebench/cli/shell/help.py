"""Help that can be found: options in groups, whole summaries, and ``scalebench help TOPIC``."""

from collections.abc import Mapping, Sequence

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
