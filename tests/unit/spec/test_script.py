"""A user's script as data."""

import pytest

from scalebench.errors import UsageError
from scalebench.spec.script import ScriptTarget, evaluate, script_from

HERE = "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["train.py"], ("train", "train.py", False, (), HERE)),
        (
            ["src/Train_GPT.py", "-m", "x"],
            ("train-gpt", "src/Train_GPT.py", False, ("-m", "x"), HERE),
        ),
        (["python", "train.py"], ("train", "train.py", False, (), HERE)),
        (["python3", "-m", "pkg"], ("pkg", "pkg", True, (), HERE)),
        (["___.py"], ("script", "___.py", False, (), HERE)),
    ],
)
def test_how_a_script_is_called(words, expected):
    found = script_from(words, HERE)
    told = (found.name, found.program, found.module, found.arguments, found.python)
    assert told == expected


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ([], "Give a script"),
        (["python"], "Give a script"),
        (["-m"], "Give a script"),
        (["--lr", "1"], "--lr is an option"),
        (["torchrun", "train.py"], "torchrun starts ranks, and so does scalebench"),
    ],
)
def test_what_is_no_script(words, complaint):
    with pytest.raises(UsageError, match=complaint):
        script_from(words, HERE)


def test_placeholders_are_replaced_and_other_braces_are_not():
    script = ScriptTarget(
        name="t", program="t.py", arguments=("--b={rank_batch}", '{"a": {world_size}}', "{x}")
    )
    assert script.arguments_for({"rank_batch": 8, "world_size": 2}) == ["--b=8", '{"a": 2}', "{x}"]
    assert script.takes_batch and script.depends_on_size


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("64", 64),
        ("{global_batch}*4", 128),
        ("rank_batch * world_size // 2", 16),
        ("{global_batch}/3", 32 / 3),
    ],
)
def test_samples_per_step(expression, value):
    sizes = {"world_size": 2, "global_batch": 32, "rank_batch": 16}
    assert evaluate(expression, sizes) == pytest.approx(value)


@pytest.mark.parametrize(
    "expression", ["", "x", "0", "-1", "1/0", "print(1)", "2**99", "'a'", "1 +"]
)
def test_what_is_no_number_of_samples(expression):
    with pytest.raises(UsageError, match="is not a number of samples"):
        evaluate(expression, {"world_size": 2})
