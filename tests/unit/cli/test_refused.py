import shlex

import pytest

from tests.examples import cases
from tests.recorded import pairs, sections

DEEP = 5000
NO_ROOM = "--memory-limit 4GB"
REFUSED = {
    f"{first} {rest}".removeprefix("scalebench "): said.split(" … ")
    for first, rows in sections("refused_commands.txt").items()
    for rest, said in pairs(rows).items()
}
REFUSED |= {
    f"run ddp --dry-run -k {'(' * DEEP!r}": ["nested too deeply"],
    f"run ddp --launcher lab --link {'9' * 400}mbit": ["50mbit"],
    f"run ddp --steps {'9' * DEEP}": ["--steps"],
    **{
        f"run --samples-per-step {text!r} -- train.py": ["not a number of samples"]
        for text in ("9**9**9", "9" * 400, "1e308*1e308", "(" * DEEP, "+".join("1" * DEEP))
    },
}


@pytest.fixture(autouse=True)
def here(project, monkeypatch):
    monkeypatch.setattr("scalebench.launch.local.LocalLauncher.survey", lambda *_: {"devices": []})
    (project / "train.py").write_text("import argparse\nparser.add_argument('--batch-size')\n")
    (project / "train.sh").write_text(
        'set -e\n# python old.py\ntorchrun $X \\\n  train.py --lr 1 "$@"\necho ok\n'
    )
    (project / "mine.py").write_text("SUITE = None")
    (project / "my_gpt.py").write_text("def two(a, b): ...\ndef workload(shard): ...\n")
    (project / "models").mkdir()
    (project / "models/small.py").write_text("raise Error\ndef first(shard): ...\n")
    (project / "e.json").write_text("{}")


@cases("typed", *REFUSED, ids=lambda typed: typed[:60])
def test_what_cannot_be_is_refused_in_one_line_before_anything_starts(in_process, project, typed):
    done = in_process(*shlex.split(typed), code=5 if NO_ROOM in typed else 2)
    assert (done.stdout, done.stderr.count("\n")) == ("", 1), done.stderr
    assert done.stderr.startswith("scalebench: ")
    assert all(words in done.stderr for words in REFUSED[typed]), done.stderr
    assert len(done.stderr) < 2000 or len(typed) > 300
    if typed.startswith(("run ", "gate ")):
        assert not (project / "reports").exists()
