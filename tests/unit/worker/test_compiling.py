"""What ``torch.compile`` needs: told before any row is measured."""

import shutil
import sys
import sysconfig

import pytest

from scalebench.worker import survey
from scalebench.worker.survey import what_is_missing, why_not_compiled

DEV = f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev"


@pytest.fixture
def machine(monkeypatch, tmp_path):
    def become(programs=("gcc", "g++"), header=True, triton=True, **variables):
        for name in ("CC", "CXX"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if header:
            (tmp_path / "Python.h").touch()
        monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
        monkeypatch.setattr(sysconfig, "get_paths", lambda: {"include": str(tmp_path)})
        monkeypatch.setattr(survey.importlib.util, "find_spec", {"triton": triton or None}.get)

    return become


@pytest.mark.parametrize(
    ("there", "device", "problem", "remedy"),
    [
        ({}, "cuda", None, None),
        ({}, "cpu", None, None),
        ({"programs": ("clang",)}, "cuda", None, None),
        ({"programs": ()}, "cuda", "no C compiler", "apt install gcc"),
        ({"programs": ("gcc",)}, "cpu", "no C++ compiler", "apt install g++"),
        ({"programs": ("tcc",), "CC": "tcc"}, "cuda", None, None),
        ({"CC": "/gone/gcc"}, "cuda", "no C compiler", "apt install gcc"),
        ({"header": False}, "cuda", "no Python.h", DEV),
        ({"triton": False}, "cuda", "no triton", "pip install triton"),
        ({"triton": False}, "cpu", None, None),
        (
            {"programs": (), "header": False},
            "cuda",
            "no C compiler, no Python.h",
            f"apt install gcc; {DEV}",
        ),
    ],
    ids=str,
)
def test_what_is_missing_is_told_with_what_installs_it(machine, there, device, problem, remedy):
    machine(**there)
    told = what_is_missing(device)
    assert told == (None if problem is None else {"problem": problem, "remedy": remedy})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_one_kernel_compiles_here():
    assert why_not_compiled("cpu") is None
