"""The elements of a trace file, whatever pieces it comes in."""

import gzip
import json

import pytest

from scalebench.errors import UsageError
from scalebench.trace import json_stream
from scalebench.trace.json_stream import TraceFile

EVENTS = [{"a": "1"}, 17, "text, with ] and }", None, [1, [2, "3.5"]], {"": {}}, True]
CONTENT = json.dumps({"before": 5, "traceEvents": EVENTS, "after": {"x": "y"}})


def read(path):
    file = TraceFile(path)
    return list(file.events()), file.about


@pytest.mark.parametrize("chunk", [*range(1, 20), 1000])
def test_pieces_of_any_size_are_the_same_file(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", chunk)
    for name, data in (("plain", CONTENT.encode()), ("packed", gzip.compress(CONTENT.encode()))):
        (tmp_path / name).write_bytes(data)
        assert read(tmp_path / name) == (EVENTS, {"before": 5, "after": {"x": "y"}})


def test_numbers_with_a_fraction_stay_text_and_others_do_not(tmp_path):
    (tmp_path / "a").write_text('[1682725898236567.123, 12, -3, 1e3, "x"]')
    assert read(tmp_path / "a") == (["1682725898236567.123", 12, -3, "1e3", "x"], {})


@pytest.mark.parametrize(("characters", "refused"), [(60, False), (200, True)])
def test_a_value_that_is_too_long_is_no_trace(tmp_path, monkeypatch, characters, refused):
    monkeypatch.setattr(json_stream, "CHUNK_BYTES", 8)
    monkeypatch.setattr(json_stream, "LONGEST_VALUE", 64)
    (tmp_path / "a").write_text(json.dumps(["x" * characters]))
    if refused:
        with pytest.raises(UsageError, match="is not JSON"):
            read(tmp_path / "a")
    else:
        assert read(tmp_path / "a")[0] == ["x" * characters]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"traceEvents": [{"ts": 1 "dur": 2}], "padding": "long"}', "is not JSON (Expecting ','"),
        ('{"traceEvents": [tru', "is cut off"),
        ('{"traceEvents": ["abc', "is cut off"),
        ('{"traceEvents": [1, nonsense-that-is-long-enough]}', "is not JSON (Expecting value)"),
        ('{"traceEvents"', "is cut off"),
        ('{"traceEvents":', "is cut off"),
        ('{5: [1], "traceEvents": []}', "is not JSON. A trace"),
        ('{"traceEvents"; [1]}', "is not JSON. A trace"),
        ('"text"', "is not JSON. A trace"),
        ("{}", "is JSON without traceEvents"),
        ("[1, nonsenseword", "is cut off"),  # 12 characters: so long is a number or a word
        ("[1, nonsensewords", "is not JSON (Expecting value)"),
    ],
)
def test_what_is_wrong_with_a_file(tmp_path, text, words):
    (tmp_path / "a").write_text(text)
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "a")
    assert words in str(refused.value)
    assert str(refused.value).endswith(".") and not str(refused.value).endswith("..")
