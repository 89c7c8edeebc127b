"""Finding suites: the path given, then ./suites, then those that come; and the script's own suite.

And the suite that compares strategies across suites: what ``run --strategies ddp,fsdp`` runs.

The suite of one case that a user's own script is: what ``run -- train.py`` runs.

The words after ``--`` may be more than a Python file: console scripts are looked up as a shell does
it, and ``accelerate launch`` is asked for its settings.
"""

import ast
import json
import re
import runpy
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path, PurePath
from typing import Any

from pydantic import ValidationError

from scalebench.errors import UsageError, unknown_name
from scalebench.gate.metrics import gate_settings
from scalebench.records.files import read_text
from scalebench.records.paths import bundled_suites, local_suites
from scalebench.spec import Case, Plain, Script, StepPlan, Suite
from scalebench.spec.script import (
    ENVIRONMENTS,
    INTERPRETER,
    LAUNCHERS,
    SIZES,
    ScriptTarget,
    evaluate,
    script_from,
    settings_before,
    without_launcher,
)

CORE_SUITES = ("ddp", "fsdp", "pipeline", "compression")
LARGEST_BYTES = 1 << 20
ASK_LIMIT_S = 120.0

_FIRST_LINE = re.compile(r"#!\s*(?:\S*/env\s+(?:-S\s+)?)?(\S+)")
_LONG_PATH = re.compile(r"'''exec' \"?([^\s\"]+)")
"""How pip begins a console script whose interpreter has too long a path for a first line."""

_AROUND = (
    *("nice", "ionice", "chrt", "taskset", "numactl", "time", "timeout", "nohup", "stdbuf"),
    *("strace", "perf", "nsys", "ncu", "rocprof", "rocprofv3", "xvfb-run", "sudo"),
)
"""Programs that run another one under some condition: they may run scalebench as well."""

_SHELL = re.compile(r"(ba|da|z|k)?sh|fish")
_ACCELERATE = ("accelerate.commands.launch", "accelerate.commands.accelerate_cli")

_ASK = """
import json, os, sys
from types import SimpleNamespace
import torch.distributed.run
from accelerate.commands import launch
before = dict(os.environ)
args = launch.launch_command_parser().parse_args(sys.argv[1:])
script = [args.training_script, *args.training_script_args]
def told(env):
    kept = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_", "FP8_", "NCCL_")
    new = {k: v for k, v in env.items() if k.startswith(kept) and before.get(k) != v}
    print("\\nTOLD " + json.dumps([new, ["-m", *script] if args.module else script]), flush=True)
    os._exit(0)
torch.distributed.run.run = lambda *_: told(os.environ)
launch.subprocess = SimpleNamespace(Popen=lambda _, env: told(env))
launch.launch_command(args)
"""
"""Has accelerate come to where it would start the ranks, and prints what it would tell them."""


def suite_files() -> dict[str, Path]:
    """Return the suites that can be given by name; ./suites hides a bundled one."""
    return _files_in(bundled_suites()) | own_suites()


def own_suites() -> dict[str, Path]:
    """Return the suites of ./suites; in a checkout of scalebench, whose they are, none."""
    folder = local_suites()
    return {} if folder.resolve() == bundled_suites().resolve() else _files_in(folder)


def hides_bundled(name: str) -> bool:
    """Tell whether a suite of ./suites is found in place of the bundled one of this name."""
    return name in own_suites() and name in _files_in(bundled_suites())


def about_hidden(names: Sequence[str]) -> tuple[str, ...]:
    """Say which of the suites to be run, by name, are not those that come with scalebench."""
    found = own_suites()
    return tuple(
        f"Suite {name} is {found[name]}, not the suite of this name that comes with scalebench"
        for name in names or core_suites()
        if hides_bundled(name)
    )


def _files_in(folder: Path) -> dict[str, Path]:
    return {p.stem: p for p in sorted(folder.glob("*.py")) if p.stem != "__init__"}


def core_suites() -> list[str]:
    """Return the names that ``run`` without a suite runs."""
    available = suite_files()
    return [name for name in CORE_SUITES if name in available]


def load_suites(names: Sequence[str]) -> list[Suite]:
    """Load suites by name or path; without any, the core suites.

    Raises:
        UsageError: No such suite, or the file does not export one.
    """
    wanted = list(dict.fromkeys(names)) or core_suites()
    suites = [load_suite(name) for name in wanted]
    twice = {s.name for s in suites if [t.name for t in suites].count(s.name) > 1}
    if twice:
        raise UsageError(f"Two of the given suites have the same name: {', '.join(sorted(twice))}.")
    return suites


def load_suite(name: str) -> Suite:
    """Load one suite by name or path."""
    path = Path(name)
    if path.suffix != ".py":
        known = suite_files()
        if name not in known:
            raise unknown_name("suite", name, known)
        path = known[name]
    elif not path.is_file():
        raise UsageError(
            f"There is no suite file {name}. Give the path of a suite file, or the name of a "
            "built-in suite (`scalebench list`)."
        )
    return _suite_in(path)


def read_question(path: Path) -> str:
    """Return what a suite asks, without executing its file; empty: it takes code to know that.

    Raises:
        UsageError: The file cannot be read, or does not define SUITE.
    """
    try:
        text = read_text(path, LARGEST_BYTES)
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(text)))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"Suite {path} cannot be read: {error or type(error).__name__}."
        ) from error
    names = [node.id for node in nodes if isinstance(node, ast.Name)]
    if not {"SUITE", "*"} & {*names, *(n.name for n in nodes if isinstance(n, ast.alias))}:
        raise _no_suite(path)
    told = [n.value for n in nodes if isinstance(n, ast.keyword) and n.arg == "question"]
    return next((str(t.value) for t in told if isinstance(t, ast.Constant)), "")


def _suite_in(path: Path) -> Suite:
    if not names_a_suite(path):
        raise _no_suite(path)
    try:
        suite = runpy.run_path(str(path)).get("SUITE")
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"Suite {path}: {error.title}.{field}: {first['msg']}.") from error
    except (Exception, SystemExit) as error:
        first_line = str(error).splitlines()[0] if str(error) else ""
        raise UsageError(
            f"Suite {path} raised {type(error).__name__}: {first_line}. If it is a training "
            f"script, put -- before it: scalebench run -- {path}."
        ) from error
    if not isinstance(suite, Suite):
        raise _no_suite(path)
    gate_settings(suite.gate, f"gate of suite {path}")  # a run should not end with this error
    return suite


def names_a_suite(path: Path) -> bool:
    """Tell whether a file can be a suite: a training script must not be executed as one."""
    try:
        text = path.read_text(errors="replace") if path.is_file() else ""
    except OSError:  # executing it says why
        return True
    return "SUITE" in text or "import *" in text


def _no_suite(path: Path) -> UsageError:
    return UsageError(
        f"{path} does not define SUITE. A suite file sets SUITE = scalebench.Suite(…); a "
        f"training script stands after --: scalebench run -- {path}."
    )


NAME = "strategies"
USUAL_WORKLOAD = "gpt"


def strategies_suite(names: tuple[str, ...], workload: str | None) -> Suite:
    """Return one suite of several strategies, with one baseline and one workload.

    All of its rows take turns, so that each gets a fair share of the time.

    ``names``: cases of the suites, or suites: all cases that such a suite runs by default.
    ``workload`` None: the one that the strategies' suites are made for.

    Raises:
        UsageError: There is no such strategy, or they are made for different workloads.
    """
    comparable = _comparable([*suite_files()])
    cases: dict[str, Case] = {"plain": Case(name="plain", strategy=Plain())}
    made_for: dict[str, str] = {}
    for name in names:
        suite, chosen = _found(name, comparable)
        if suite.workload != USUAL_WORKLOAD:
            made_for[name] = suite.workload
        alike = {"optional": False, "batch_size": None}
        cases |= {case.name: case.model_copy(update=alike) for case in chosen}
    if workload is None and len(set(made_for.values())) > 1:
        told = ", ".join(f"{name} for {of}" for name, of in made_for.items())
        raise UsageError(
            f"--strategies compares on one workload, and these are made for several ({told}): "
            "name one with --workload."
        )
    return Suite(
        name=NAME,
        question="Which of these strategies trains fastest here, and which needs least memory?",
        cases=tuple(cases.values()),
        workload=next(iter(made_for.values()), USUAL_WORKLOAD),
        steps=StepPlan(window_s=0.4, rounds_s=0.4, min_steps=8),
    )


def known_strategies(suite_names: Sequence[str]) -> set[str]:
    """Return what may be compared of some suites: their cases, and the suites themselves."""
    suites = _comparable(suite_names)
    cases = {case.name for suite in suites for case in _strategies(suite)}
    return cases | {suite.name for suite in suites}


def _comparable(names: Sequence[str]) -> list[Suite]:
    """Return the suites whose steps are measured, not races or recoveries."""
    suites = load_suites(names)
    return [s for s in suites if s.race is None and s.recovery is None and s.cases]


def _found(name: str, suites: Sequence[Suite]) -> tuple[Suite, list[Case]]:
    """Return the cases that a name stands for: that of a case goes before that of a suite."""
    # The suite of a case's own name knows best what the case is made for.
    ordered = sorted(suites, key=lambda suite: suite.name != name)
    for suite in ordered:
        for case in _strategies(suite):
            if case.name == name:
                return suite, [case]
    for suite in ordered:
        if suite.name == name:
            return suite, [case for case in _strategies(suite) if not case.optional]
    nearest = get_close_matches(name, known_strategies([*suite_files()]), n=1, cutoff=0.5)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    names = ", ".join(sorted(suite.name for suite in suites))
    raise UsageError(
        f"There is no strategy {name!r}.{hint} Valid: {names}, and each of their cases "
        "(scalebench list suites)."
    )


def _strategies(suite: Suite) -> Iterator[Case]:
    return (case for case in suite.cases if not isinstance(case.strategy, Plain))


def understood(words: Sequence[str], python: str | None) -> list[str]:
    """Return words that say the same to `scalebench.spec.script.script_from`.

    Raises:
        UsageError: They start something else than Python.
    """
    settings, rest = settings_before(words)
    first = PurePath(rest[0]).name if rest else ""
    if rest[:2] == ["accelerate", "launch"] or first == "accelerate-launch":
        own = _interpreter(Path(shutil.which(rest[0]) or ""))
        launch = rest[1 if first == "accelerate-launch" else 2 :]
        return settings + _of_accelerate(python or own or "python", launch)
    named = rest.pop(0) if INTERPRETER.fullmatch(first) else None
    if rest[:1] == ["-m"] and rest[1:2] and rest[1] in _ACCELERATE:
        launch = rest[3:] if rest[2:3] == ["launch"] else rest[2:]
        return settings + _of_accelerate(python or named or sys.executable, launch)
    if named is not None:
        return [*settings, named if python else shutil.which(named) or named, *rest]
    if not rest or rest[0].startswith("-") or first in LAUNCHERS + ENVIRONMENTS:
        return list(words)
    return settings + _as_python(rest, python)


def _as_python(rest: list[str], python: str | None) -> list[str]:
    """Return words that begin with a program, as those of the Python file that it is."""
    file = Path(rest[0])
    if _SHELL.fullmatch(file.name):
        words = [word for word in rest[1:] if not word.startswith("-")] or [rest[0]]
        is_text = words == rest[2:3]  # bash -c "python train.py"
        text = words[0] if is_text else _text(Path(words[0]))
        raise UsageError(_why_no_shell(" ".join(rest[:2]) if is_text else words[0], text))
    if file.name in _AROUND:
        raise UsageError(
            f"{rest[0]} is no Python script: give the script itself after --. What is to run "
            f"around the whole measurement stands before scalebench: {rest[0]} scalebench run "
            f"{without_launcher(rest[1:])}."
        )
    is_here = file.is_file()
    file = file if is_here else Path(shutil.which(rest[0]) or "")
    if file.suffix in (".py", ".pyw") or not file.is_file():
        return rest
    interpreter = _interpreter(file) or ""
    name = PurePath(interpreter).name
    if file.suffix == ".sh" or _SHELL.fullmatch(name):
        raise UsageError(_why_no_shell(str(file), _text(file)))
    if INTERPRETER.fullmatch(name):
        return [*(() if python else (interpreter,)), str(file), *rest[1:]]
    if is_here and not interpreter and b"\0" not in file.read_bytes()[:512]:
        return rest
    raise UsageError(
        f"{rest[0]} is no Python script: give the script itself after --, for example "
        f"{without_launcher(rest[1:])}."
    )


def _interpreter(file: Path) -> str | None:
    """Return the program that a script's first line names; None: it names none."""
    try:
        with file.open("rb") as opened:
            begin = opened.read(1024).decode("utf-8", errors="replace")
    except OSError:
        return None
    found = _FIRST_LINE.match(begin)
    by_pip = _LONG_PATH.search(begin)
    return (by_pip or found)[1] if found else None


def _text(file: Path) -> str:
    return file.read_text(errors="replace") if file.is_file() else ""


_SHELL_PARTS = r"""("[^"\n]*"|'[^'\n]*')|\s[\d&]?>>?(?:&\d|\s*\S+)|[;|&]"""
"""Of a shell's line: what is quoted, where output goes, and what parts commands."""


def _why_no_shell(name: str, text: str) -> str:
    """Say what to write instead of a shell script: its own line that starts Python."""
    text = re.sub(r"\\\n|\"?\$[@*]\"?", " ", text)
    text = re.sub(_SHELL_PARTS, lambda part: part[1] or ("\n" if part[0] in ";|&" else " "), text)
    lines = [" ".join(line.split()) for line in text.splitlines()]
    starts = [w for w in lines if (".py" in w or " -m " in w) and not w.startswith("#")]
    line = (starts or ["train.py --lr 0.1"])[-1]
    started = re.match(rf"(exec )?(\S*/)?({'|'.join(LAUNCHERS)}|uv run) ", line)
    command = without_launcher(line.split()) if started else f"-- {line}"
    return (
        f"{name} starts a shell, and scalebench starts Python itself. Give the command in it "
        f"that starts the training: scalebench run {command}"
    )


def _of_accelerate(python: str, words: list[str]) -> list[str]:
    """Return the script that ``accelerate launch`` would start, behind the settings it would make.

    The number of processes is not among them: that is what scalebench varies.
    """
    try:
        asked = subprocess.run(
            [python, "-c", _ASK, *words], capture_output=True, text=True, timeout=ASK_LIMIT_S
        )
        told = [line for line in asked.stdout.splitlines() if line.startswith("TOLD ")]
        trouble = (asked.stderr.strip().splitlines() or ["it said nothing"])[-1]
    except (OSError, subprocess.TimeoutExpired) as error:
        told, trouble = [], str(error)
    if not told:
        raise UsageError(
            f"accelerate launch does not say what it would start ({trouble}). Give the script "
            "itself, behind accelerate's settings as variables, for example "
            f"-- ACCELERATE_MIXED_PRECISION=bf16 {without_launcher(words)[3:]}."
        )
    settings, script = json.loads(told[-1].removeprefix("TOLD "))
    return [*(f"{name}={value}" for name, value in settings.items()), python, *script]


CASE = "script"

USELESS = ("workload", "strategies", "dtype", "compile", "max_batch", "memory_limit")
"""Options that say how scalebench's own workloads are trained."""


def script_suite(words: Sequence[str], flags: dict[str, Any]) -> Suite:
    """Return the suite of a script.

    Raises:
        UsageError: There is no such script, or the options do not fit it.
    """
    script = script_from(understood(words, flags["python"]), flags["python"])
    script = script.model_copy(
        update={
            "samples_per_step": flags["samples_per_step"],
            "scaling": flags["scaling"],
            "to_the_end": flags["to_the_end"],
        }
    )
    _check(script, flags)
    return Suite(
        name=script.name,
        question=f"How does {script.shown} scale?",
        cases=(Case(name=CASE, strategy=Script()),),
        workload=script.name,
        scaling=(script.scaling or "strong") if script.takes_batch else "weak",
        script=script,
    )


def _check(script: ScriptTarget, flags: dict[str, Any]) -> None:
    for name in USELESS:
        if flags.get(name) not in (None, False):
            raise UsageError(
                f"--{name.replace('_', '-')} is for scalebench's own workloads: your script "
                "decides that itself. Leave it out, or give the script an argument."
            )
    if flags["suites"]:
        raise UsageError(f"Give a suite ({flags['suites'][0]}) or a script after --, not both.")
    if shutil.which(script.python) is None:
        raise UsageError(
            f"There is no interpreter {script.python}. Give the path of a Python to --python."
        )
    if not script.module and not Path(script.program).is_file():
        raise UsageError(
            f"There is no script {script.program}. Give the path of a Python file after --, or -m "
            "and the name of a module."
        )
    script.check_placeholders()
    if script.takes_batch and flags["batch_size"] is None:
        raise UsageError(
            "The script's arguments hold {global_batch} or {rank_batch}, and nothing says how "
            "large the batch is: give --batch-size."
        )
    if flags["batch_size"] is not None and not script.takes_batch:
        raise UsageError(
            "--batch-size does not reach the script: put {rank_batch} or {global_batch} into its "
            "arguments, for example -- train.py --batch {rank_batch}."
        )
    if script.samples_per_step is not None:
        if "_batch" in script.samples_per_step and not script.takes_batch:
            raise UsageError(
                "--samples-per-step names a batch that nothing gives to the script. Put "
                "{rank_batch} or {global_batch} into the script's arguments and give --batch-size, "
                "or give the number itself, e.g. {world_size}*64."
            )
        evaluate(script.samples_per_step, dict.fromkeys(SIZES, 1))
