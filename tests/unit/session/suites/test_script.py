"""The suite of a user's script, and options that do not fit it."""

import pytest

from scalebench.errors import UsageError
from scalebench.session.suites.script import script_suite
from tests.builders.sessions import NO_FLAGS


@pytest.fixture(autouse=True)
def train_py(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("")
    monkeypatch.chdir(tmp_path)


def suite(*words, **flags):
    return script_suite(["train.py", *words], NO_FLAGS | flags)


@pytest.mark.parametrize(
    ("words", "flags", "complaint"),
    [
        (["{rank_batch}"], {}, "give --batch-size"),
        ([], {"batch_size": 32}, "--batch-size does not reach the script"),
        ([], {"workload": "gpt"}, "--workload is for scalebench's own workloads"),
        ([], {"compile": True}, "--compile is for"),
        ([], {"suites": ("ddp",)}, "Give a suite"),
        ([], {"python": "/nowhere/python"}, "There is no interpreter /nowhere/python"),
        ([], {"samples_per_step": "{global_batch}"}, "names a batch that nothing gives"),
        ([], {"samples_per_step": "many"}, "is not a number of samples"),
    ],
)
def test_options_that_do_not_fit(words, flags, complaint):
    with pytest.raises(UsageError, match=complaint):
        suite(*words, **flags)


def test_a_script_that_does_not_exist():
    with pytest.raises(UsageError, match=r"There is no script train2\.py"):
        script_suite(["train2.py"], NO_FLAGS)
