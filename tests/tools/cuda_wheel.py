"""The newest CUDA wheel of torch on a machine without a GPU: ``make cuda-wheel``.

A GPU user's first contact is this wheel, and another one than the pinned CPU build of the other
tests. What needs no card is tried here: every module is imported, every name of torch that the
sources use exists, the process that forks ranks leaves CUDA alone, and the commands that look and a
short traced run work. It has its own environment, without what the other tests need.
"""

import ast
import importlib
import json
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import scalebench

SOURCES = sorted(Path(scalebench.__file__).parent.rglob("*.py"))


def command(*arguments: object, status: int = 0) -> str:
    """Run ``scalebench``; return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "scalebench", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout


def test_this_is_a_cuda_wheel_without_a_gpu() -> None:
    assert torch.version.cuda, f"torch {torch.__version__} is a CPU build"
    assert not torch.cuda.is_available(), "there is a GPU here: run make gpu-evidence instead"


def test_every_module_is_imported_and_none_touches_cuda() -> None:
    names = [one.name for one in pkgutil.walk_packages(scalebench.__path__, "scalebench.")]
    assert len(names) > 300
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)
    assert not torch.cuda.is_initialized()


def names_of_torch(tree: ast.AST) -> Iterator[str]:
    """Return every ``torch.a.b.c`` of a source, at its whole length."""
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            name = ast.unparse(node)
            if name.startswith("torch.") and name.replace(".", "").replace("_", "").isalnum():
                yield name


def exists(name: str) -> bool:
    """Tell whether a dotted name of torch leads to something; submodules are imported."""
    found: Any = torch
    for number, part in enumerate(name.split(".")[1:], 2):
        try:
            found = getattr(found, part)
        except AttributeError:
            try:
                found = importlib.import_module(".".join(name.split(".")[:number]))
            except ImportError:
                return False
    return True


def test_every_name_of_torch_that_the_sources_use_exists() -> None:
    used = {name for path in SOURCES for name in names_of_torch(ast.parse(path.read_text()))}
    assert {"torch.cuda.Event", "torch.cuda.is_tf32_supported"} <= used
    assert [name for name in sorted(used) if not exists(name)] == []
    assert not exists("torch.cuda.NoSuchEvent")


def test_doctor_names_the_build_and_says_that_there_is_no_gpu() -> None:
    told = command("doctor")
    assert f"CUDA           {torch.version.cuda}" in told and "None" not in told
    assert "torch sees no CUDA device" in told


def test_a_sweep_that_asks_for_gpus_is_refused_and_one_that_does_not_is_planned() -> None:
    command("run", "ddp", "--device", "cuda", "--dry-run", status=5)
    assert "launches" in command("run", "ddp", "--device", "cpu", "--dry-run")


def test_ranks_train_are_verified_and_their_traces_are_read(tmp_path: Path) -> None:
    """On the CPU over gloo, by the same profiler: its events are read field by field."""
    chosen = ("-k", "ddp and not bucket and not accumulate", "--gpus", "1,2", "--quick")
    command("run", "ddp", *chosen, "--device", "cpu", "--out", tmp_path / "run")
    rows = json.loads((tmp_path / "run" / "summary.json").read_text())["rows"]
    [row] = [row for row in rows if row["world_size"] == 2]
    assert row["correctness"]["status"] == "verified", row["reason"]
    assert row["comm_s"]["value"] > 0, row["unavailable"]
    assert row["wire_bytes"] > 0, row["unavailable"]
