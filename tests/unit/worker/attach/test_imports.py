"""What waits for an import is called when the module has run, however the script came to it."""

import importlib
import importlib.util
import sys
import threading
from importlib.metadata import distributions
from pathlib import Path

import pytest

from scalebench.worker.attach.imports import after_import_of

NAME = "lately_imported"


@pytest.fixture
def called(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What the call saw in the module, once for each call."""
    (tmp_path / f"{NAME}.py").write_text("value = 1\nraise_once()\nvalue = 2\n")
    monkeypatch.setattr("builtins.raise_once", lambda: None, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    seen: list[int] = []
    after_import_of(NAME, lambda: seen.append(sys.modules[NAME].value))
    return seen


def in_a_thread() -> None:
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()


def lazily() -> None:
    spec = importlib.util.find_spec(NAME)
    assert spec is not None and spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert module.value == 2


def with_other_finders() -> None:
    sys.meta_path = [finder for finder in sys.meta_path if finder is not None]
    importlib.import_module(NAME)


@pytest.mark.parametrize(
    "load", [lambda: importlib.import_module(NAME), in_a_thread, lazily, with_other_finders]
)
def test_questions_before_the_import_change_nothing(called, load):
    for _ in range(2):
        spec = importlib.util.find_spec(NAME)
        assert spec is not None and spec.loader.get_filename(NAME) == spec.origin
    assert list(distributions()) and not called
    load()
    assert called == [2]
    importlib.reload(sys.modules[NAME])
    assert called == [2]
    assert "exec_module" not in vars(sys.modules[NAME].__spec__.loader)


def test_an_import_that_fails_may_be_tried_again(called, monkeypatch):
    monkeypatch.setattr("builtins.raise_once", lambda: 1 / 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            importlib.import_module(NAME)
    assert not called
    monkeypatch.setattr("builtins.raise_once", lambda: None)
    importlib.import_module(NAME)
    assert called == [2]


def test_a_module_that_is_not_there_or_is_there_already(called):
    after_import_of("json", lambda: called.append(7))
    assert called == [7]
    after_import_of("not_anywhere", lambda: called.append(8))
    assert importlib.util.find_spec("not_anywhere") is None
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("not_anywhere")
    assert called == [7]
