"""The suite of one case that a user's own script is: what ``run -- train.py`` runs."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from scalebench.errors import UsageError
from scalebench.session.suites.script_words import understood
from scalebench.spec import Case, Script, Suite
from scalebench.spec.script import SIZES, ScriptTarget, evaluate, script_from

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
