"""The file itself: numbers of its lines, their starts, and which kind it is."""

import pytest

from scalebench.costmodel.links.nccl_tests import _is_json, _lines, read_log
from scalebench.errors import UsageError

LONGEST = 65_536
"""Characters."""


@pytest.fixture
def write(tmp_path):
    def write(content):
        path = tmp_path / "x.log"
        path.write_text(content)
        return path

    return write


def test_lines_are_numbered_and_of_long_ones_the_start_is_given(write):
    long = "y" * LONGEST
    found = list(_lines(write(f"one\n\n{long}{long}z\nfour\n{long[1:]}\nlast")))
    assert found == [
        (1, "one\n"),
        (2, "\n"),
        (3, long),
        (4, "four\n"),
        (5, long[1:] + "\n"),
        (6, "last"),
    ]


def test_binary_data_is_told_with_its_line(write):
    with pytest.raises(UsageError, match="line 3: binary data"):
        list(_lines(write("one\ntwo\nth\0ree\n")))


@pytest.mark.parametrize(
    ("content", "is_json"), [('{"a": 1}', True), ("\n \t{", True), ("a {", False), ("[1]", False)]
)
def test_json_begins_with_a_brace(write, content, is_json):
    assert _is_json(write(content)) == is_json


def test_what_has_only_blanks_at_its_start_is_empty(write):
    with pytest.raises(UsageError, match="is empty"):
        _is_json(write(" " * LONGEST + "{"))
    assert _is_json(write(" " * (LONGEST - 1) + "{"))


@pytest.mark.parametrize("world_size", [0, -3])
def test_there_is_one_rank_at_least(write, world_size):
    path = write("one\n")
    with pytest.raises(UsageError, match=f"ranks is {world_size}; it must be at least 1"):
        read_log(path, world_size=world_size)
    with pytest.raises(UsageError, match="has no table"):
        read_log(path, world_size=1)
