"""Help that can be found: groups of options, whole summaries, and the meaning of words."""

import click
import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.cli.help import GROUPS
from scalebench.cli.run import run
from scalebench.errors import UsageError


def printed(*words: str) -> str:
    done = CliRunner().invoke(cli, words, catch_exceptions=False, prog_name="scalebench")
    return done.output


def sections(text: str) -> dict[str, str]:
    """Return title of a section → its text, of what click prints."""
    parts = [part.split(":\n", 1) for part in text.split("\n\n") if ":\n  " in part]
    return {title: body for title, body in parts}


def test_every_option_of_run_stands_in_one_group_and_the_first_group_has_ten():
    grouped = [name for names in GROUPS.values() for name in names]
    assert len(grouped) == len({*grouped})
    found = sections(printed("run", "--help"))
    assert list(found) == list(GROUPS) and "More" not in found
    for option in run.params:
        if isinstance(option, click.Option):
            name = max(option.opts, key=len)
            holding = [t for t, body in found.items() if f"  {name}" in body or f", {name}" in body]
            assert holding, name
    assert found["What people need first"].count("\n  --") + 1 == 10


def test_no_summary_is_cut_off():
    for group in (cli, cli.commands["baseline"]):
        assert isinstance(group, click.Group)
        with click.Context(group, info_name="scalebench") as context:
            told = " ".join(sections(group.get_help(context))["Commands"].split())
        for name, command in group.commands.items():
            first = " ".join((command.help or "").split()).partition(". ")[0].rstrip(".")
            assert name in told and first.split(": ")[-1].split()[-1] in told
        assert "..." not in told.replace("--slurm ...", "")


def test_help_explains_commands_words_and_fields():
    assert printed("help", "gate").startswith("Usage: scalebench gate")
    assert "against plain" in printed("help", "efficiency")
    assert "rank waited for a later rank" in " ".join(printed("help", "wait_s").split())
    assert printed("help", "strong", "scaling") == printed("help", "strong scaling")
    listed = printed("help")
    assert "calibrate" in listed and "oversubscribed" in listed and "---" not in listed
    with pytest.raises(UsageError, match="Did you mean 'efficiency'"):
        printed("help", "efficency")


def test_a_topic_that_is_none_gets_one_line_with_the_nearest():
    done = CliRunner().invoke(cli, ["help", "efficiensy"])
    assert isinstance(done.exception, UsageError)
    assert str(done.exception) == (
        "There is no topic 'efficiensy'. Did you mean 'efficiency'? All topics: scalebench help."
    )
