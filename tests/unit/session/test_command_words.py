"""What ``scalebench.run`` stores as its command asks the command line for the same."""

import sys
from pathlib import Path

from scalebench.cli.run import request_from, run
from scalebench.cli.shell.completion import SCRIPT
from scalebench.session.plan import Request
from scalebench.session.run import command_of
from scalebench.spec import Case, Ddp, Suite
from tests.examples import cases

VALUES = {
    "world_sizes": (1, 2),
    "device": "cpu",
    "workload": "mlp tiny",
    "scaling": "weak",
    "batch_size": 32,
    "steps": 20,
    "repeats": 2,
    "precision": 0.02,
    "target_loss": 1.5,
    "time_limit_s": 90.0,
    "budget_s": 600.5,
    "selection": "ddp and not 4",
    "only": ("ddp.ddp.n1", "ddp.ddp.n2"),
    "link_profile": Path("a link.json"),
    "memory_limit_bytes": 200_000_000,
    "checkpoint_dir": Path("there"),
}
SWITCHES = [
    *("oversubscribe", "quick", "max_batch", "keep_going", "anonymise", "allow_busy"),
    *("autocast", "compile", "shared", "pinned", "trace"),
]


@cases(
    "changes",
    VALUES,
    *({name: value} for name in SWITCHES for value in (True, False)),
    {"autocast": "float16"},
    {},
)
def test_the_command_asks_for_the_same(changes, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = Request(**changes)
    name, command, *words = command_of(["ddp"], asked)
    assert (name, command) == ("scalebench", "run")
    context = run.make_context("run", words)
    assert context.params["suites"] == ("ddp",)
    assert request_from({**context.params, "script": context.meta.get(SCRIPT)}) == asked


def test_a_suite_that_python_made_is_made_again_by_the_program(monkeypatch):
    monkeypatch.setattr(sys, "orig_argv", ["/opt/python", "look.py", "--fast"])
    suite = Suite(name="mine", question="?", cases=(Case(name="ddp", strategy=Ddp()),))
    assert command_of([suite], Request(steps=2)) == ["python", "look.py", "--fast"]
