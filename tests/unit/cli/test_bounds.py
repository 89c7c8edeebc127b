"""Numbers and names from outside that no program expects: one line, at once, exit code 2."""

import json
import math
import os
from pathlib import Path

import pytest

from scalebench.cli import main
from scalebench.records.storage.files import write_checked, write_model
from scalebench.spec.base import Spec, as_given
from tests.builders.gated import gated_run

DEEP = 5000


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        with pytest.raises(SystemExit) as left:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert len(err.splitlines()) <= 1, err
        return left.value.code, out, err

    return run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "--schedule", "gpipe", "-p", "4096", "-m", "65536"], "at most 131,072"),
        (["run", "ddp", "--dry-run", "-k", "(" * DEEP], "nested too deeply"),
        (["run", "ddp", "--launcher", "lab", "--link", "9" * 400 + "mbit"], "50mbit"),
        (["run", "ddp", "--steps", "9" * DEEP], "--steps"),
        (["run", "ddp", "--gpus", "1-999999999999"], "1,2,4"),
        (["import", "a.log:gpus=1", "b.log:gpu=2"], "did you mean gpus=2?"),
        *(
            (["run", "--samples-per-step", text, "--", "train.py"], "not a number of samples")
            for text in ("9**9**9", "9" * 400, "1e308*1e308", "(" * DEEP, "+".join("1" * DEEP))
        ),
    ],
)
def test_arguments(told, arguments, words):
    Path("train.py").touch()
    code, _, line = told(*arguments)
    assert code == 2 and words in line, line


@pytest.mark.parametrize("number", ["1e200", "-1.5E+0300", "9" * 200, "1e999"])
def test_numbers_whose_square_is_none_are_no_measurement(told, number):
    content = gated_run(seed=1).model_dump(mode="json")
    content["rows"][0]["exposed_comm_s"] = {"value": "huge", "low": 0, "high": 1, "n": 3}
    Path("s.json").write_text(json.dumps(content).replace('"huge"', number))
    code, _, line = told("gate", "s.json", "--baseline", "s.json")
    assert code == 2 and "s.json is damaged: rows.0.exposed_comm_s.value" in line, line
    assert "Copy it again" in line


def test_a_damaged_summary_of_a_run_is_made_again_when_it_is_removed(told):
    Path("run.json").touch()
    Path("summary.json").write_text('{"format": 1 "rows"')
    code, _, line = told("gate", "summary.json", "--baseline", "summary.json")
    assert code == 2 and "Remove it" in line, line


class Named(Spec):
    path: Path
    words: tuple[str, ...]
    ratio: float = math.nan


@pytest.mark.parametrize("write", [write_model, write_checked])
def test_names_that_are_no_text_are_stored_in_escaped_form(tmp_path, write):
    name, word = os.fsdecode(b"caf\xe9.py"), os.fsdecode(b"--a=\xff\xc3\xa4")
    target = tmp_path / os.fsdecode(b"run\xff.json")
    write(target, Named(path=Path(name), words=(word, "plain")))
    found = json.loads(target.read_text())
    assert (found["path"], found["words"]) == ("caf\\udce9.py", ["--a=\\udcffä", "plain"])
    assert found["ratio"] is None
    assert as_given(found["path"]) == name and as_given(found["words"][0]) == word
