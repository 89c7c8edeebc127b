"""Help that can be found: groups of options, whole summaries, and the meaning of words."""

import pytest
from click.testing import CliRunner

from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.records.rows.budget import PARTS


def printed(*words):
    done = CliRunner().invoke(cli, words, catch_exceptions=False, prog_name="scalebench")
    return done.output


def test_help_explains_commands_words_and_fields():
    assert printed("help", "gate").startswith("Usage: scalebench gate")
    assert "against plain" in printed("help", "efficiency")
    assert "rank waited for a later rank" in " ".join(printed("help", "wait_s").split())
    assert printed("help", "strong", "scaling") == printed("help", "strong scaling")
    for part in (*(part.name for part in PARTS), "open"):
        assert len(printed("help", part).split()) > 4, part
    assert "of it in which" not in printed("help", "waiting")
    assert "The rest of" not in printed("help", "transfer")
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
