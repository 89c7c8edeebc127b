"""Bad input: one clear line that names what was given, what is valid and what to do; exit 2."""

import shutil
from pathlib import Path

import pytest

from tests.examples import cases
from tests.integration.conftest import SHORT, complaint, mounted


@cases(
    "target, words",
    ("nowhere:f", ["nowhere"]),
    ("troubled:nothing", ["nothing", "healthy"]),
    ("troubled:raises_at_once", ["no data today", "troubled.py"]),
    ("troubled:returns_a_module", ["Workload", "Linear"]),
    ("troubled:loss_is_a_float", ["float", "scalar tensor"]),
    ("troubled:loss_per_sample", ["shape (2,)", "scalar tensor"]),
)
def test_a_workload_function_that_is_wrong(scalebench, project, troubled, target, words):
    line = complaint(scalebench("run", "ddp", "--workload", target, *SHORT))
    assert all(word in line for word in words), line
    assert not (project / "reports").exists()


def test_a_folder_for_the_page_that_cannot_be_written(in_process, project):
    gallery = Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores"
    shutil.copytree(gallery, project / "old", ignore=shutil.ignore_patterns("*.html", "logs"))
    (project / "old" / "report.html").mkdir()
    line = complaint(in_process("report", "old"), code=5)
    assert "The page cannot be written" in line


def test_cuda_where_there_is_none(scalebench):
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has CUDA")
    line = complaint(scalebench("run", "ddp", "--device", "cuda"), code=5)
    assert "--device cpu" in line


@cases("file, words", ("taken", ["taken is a file"]), ("full/thesis.tex", ["full", "--resume"]))
def test_out_is_or_holds_a_file(in_process, project, file, words):
    (project / "full").mkdir()
    (project / file).write_text("mine")
    line = complaint(in_process("run", "ddp", "--out", file.partition("/")[0]))
    assert all(word in line for word in words), line
    assert (project / file).read_text() == "mine"


@cases("out, words", ("x" * 300, "too long"), ("/proc/nothing/here", "/proc/nothing/here"))
def test_out_cannot_be_made(in_process, out, words):
    assert words in complaint(in_process("run", "ddp", "--out", out), code=5)


def test_out_on_a_full_disk(in_process, tmp_path):
    with mounted(tmp_path / "small", "size=1m") as small:
        line = complaint(in_process("run", "ddp", "--out", str(small / "run")), code=5)
    assert "No space left" in line
