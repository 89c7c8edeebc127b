import ast
import importlib
import importlib.util
import json
import subprocess
import sys
import threading
from functools import partial
from importlib.metadata import distributions
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.utils.data._utils.worker import _worker_loop

from scalebench.worker import attach, portable
from scalebench.worker.attach.imports import after_import_of
from scalebench.worker.attach.script import is_rank_of_its_own, launched
from tests.builders.repository.imports import imported
from tests.examples import cases

pytestmark = pytest.mark.slow


NAME = "lately_imported"


@pytest.fixture
def called(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.py").write_text("value = 1\nraise_once()\nvalue = 2\n")
    monkeypatch.setattr("builtins.raise_once", lambda: None, raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    seen: list[int] = []
    after_import_of(NAME, lambda: seen.append(sys.modules[NAME].value))
    return seen


def in_a_thread():
    thread = threading.Thread(target=importlib.import_module, args=(NAME,))
    thread.start()
    thread.join()


def lazily():
    spec = importlib.util.find_spec(NAME)
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    sys.modules[NAME] = module
    spec.loader.exec_module(module)
    assert module.value == 2


def with_other_finders():
    sys.meta_path = [finder for finder in sys.meta_path if finder is not None]
    importlib.import_module(NAME)


@cases("load", lambda: importlib.import_module(NAME), in_a_thread, lazily, with_other_finders)
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


@cases(
    "words, found",
    ("torchrun --nproc-per-node 2 t.py --lr 1", ("torchrun", "t.py --lr 1")),
    ("/e/bin/python -m torch.distributed.run t.py", ("torch.distributed.run", "t.py")),
    ("/e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
    ("/e/bin/python /e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
    ("deepspeed --num_gpus 2 -m pack", ("deepspeed", "train.py")),
    ("accelerate config", None),
    ("python t.py torchrun", None),
    ("git log torchrun", None),
    ("nvidia-smi", None),
)
def test_a_command(words, found):
    assert launched(words.split(), {}) == found


MODULES = [*sorted(Path(attach.__file__).parent.rglob("*.py")), Path(portable.__file__)]
OURS = ("scalebench.worker.attach", "scalebench.worker.portable")
ON_THE_WAY = [Path(attach.__file__).parents[up] / "__init__.py" for up in (1, 2)]


@cases("path", *MODULES, *ON_THE_WAY, ids=lambda p: f"{p.parent.name}.{p.stem}")
def test_it_imports_nothing_else(path):
    code = path.read_text()
    ast.parse(code, feature_version=(3, 9))
    for name in imported(code):
        root = name.partition(".")[0]
        assert root in {*sys.stdlib_module_names, "torch"} or name.startswith(OURS), name


def makes_a_group(rank):
    dist.init_process_group("gloo", rank=rank, world_size=2)


def is_called_from_afar(rank):
    dist.rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2)


def trains_what_is_shared(model, batches):
    for batch in batches:
        model(batch).sum().backward()


def starts_training(*given):
    trains_what_is_shared(*given)


def reads(path, queue):
    queue.put(torch.load(path))


@cases(
    "run, is_rank",
    (makes_a_group, True),
    (is_called_from_afar, True),
    (starts_training, True),
    (partial(starts_training, None), True),
    (reads, False),
    (_worker_loop, False),
    (len, False),
)
def test_a_process_that_trains_is_a_rank_of_the_script_s_own(run, is_rank):
    assert is_rank_of_its_own(run) is is_rank


STEPS, NUM_WAYS = 3, 17


def test_steps_are_counted_whatever_the_optimizer():
    program = [sys.executable, "-m", "tests.unit.worker.attach.hooked"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    counted = {name: seen.pop(name) for name in list(seen) if name.startswith("steps of ")}
    assert counted == dict.fromkeys(counted, STEPS) and len(counted) == NUM_WAYS
    assert seen.pop("samples") == STEPS * 4
    assert seen == dict.fromkeys(seen, 1) and len(seen) == 13
