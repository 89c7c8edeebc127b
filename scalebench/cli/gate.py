"""``compare``, ``gate`` and ``baseline``: a run compared with another one."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench import units
from scalebench.cli.help import WholeSummaries
from scalebench.cli.options import DURATION, FRACTION, Count, options, runs
from scalebench.cli.view import emit, emit_for_terminal, say
from scalebench.errors import UsageError

if TYPE_CHECKING:
    from scalebench.gate.result import GateResult, Overall
    from scalebench.gate.results import Results
    from scalebench.session.interleaved.ab_runs import InterleavedRuns


def _as_markdown(result: "GateResult") -> str:
    from scalebench.report.gate_ci import render_verdict_markdown

    return render_verdict_markdown(result)


def _as_junit(result: "GateResult") -> str:
    from scalebench.report.gate_ci import render_verdict_junit

    return render_verdict_junit(result)


def _as_github(result: "GateResult") -> str:
    """Return annotations; the job's summary, where there is one, gets the Markdown."""
    from scalebench.report.gate_ci import append_to_summary, render_verdict_github

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary and not append_to_summary(Path(summary), _as_markdown(result)):
        say("scalebench: the GitHub summary of this step is full; nothing was added to it.")
    return render_verdict_github(result)


FIRST_ROUNDS = 5
"""Of two versions by turns, before the first look at what is decided."""

FEWEST_ROUNDS = 2
"""So many are made whatever time there is: fewer do not tell how launches differ."""

BUDGET_S = 900.0
"""How long two versions take turns where the user says neither a time nor a number of rounds."""

FORMATS: Mapping[str, Callable[["GateResult"], str]] = {
    "json": lambda result: json.dumps(result.as_json(), indent=1, allow_nan=False),
    "markdown": _as_markdown,
    "junit": _as_junit,
    "github": _as_github,
}
"""What ``--format`` takes besides ``table``: name → the whole text. Functions import what they need
when they are called, so that the command starts fast."""


def show_result(result: "GateResult", flags: Mapping[str, Any]) -> None:
    """Print a result in the format that the flags say."""
    form, everything = "json" if flags["as_json"] else flags["form"], flags["everything"]
    if form != "table":
        emit(FORMATS[form](result).removesuffix("\n"))
        return
    from scalebench.report.gate_table import render_verdict

    emit_for_terminal(lambda screen: render_verdict(result, screen, everything))


_shared = options(
    click.option(
        "--format",
        "form",
        type=click.Choice(["table", *FORMATS]),
        default="table",
        show_default=True,
        help="Output format of the verdicts.",
    ),
    click.option("--json", "as_json", is_flag=True, help="The same as --format json."),
    click.option(
        "--allow-mismatch",
        "allowed",
        metavar="NAME",
        multiple=True,
        help="Compare even if NAME differs: torch, cpu, devices, bucket_mb, … (repeatable).",
    ),
    click.option("--all", "everything", is_flag=True, help="Also show what is unchanged."),
)
"""What ``compare`` and ``gate`` share."""


@click.command()
@click.argument("base", shell_complete=runs)
@click.argument("new", required=False, shell_complete=runs)
@_shared
def compare(base: str, new: str | None, **flags: Any) -> None:
    """Show what changed from BASE to NEW (default: the newest run), with intervals.

    BASE and NEW are run folders, summary.json files, or folders of accepted baselines. The exit
    code is always 0; use `scalebench gate` for a verdict.
    """
    from scalebench.report.gate_ci import sentence
    from scalebench.session import results

    result = results.compare(base, new, allow_mismatch=flags["allowed"])
    if not flags["as_json"] and flags["form"] == "table" and (text := sentence(result)):
        emit_for_terminal(lambda screen: screen.line(text, "bold").text())
    show_result(result, flags)


GATE_HELP = """Judge NEW (default: the newest run) against a baseline, for CI.

\b
Exit codes: 0 passed · 1 slower, or probably slower · 2 usage · 4 cells of NEW failed
            3 not comparable, missing in NEW, or too noisy for --need
            5 a run could not be made (--interleave) · 70 a defect of scalebench
"""


@click.command(help=GATE_HELP)
@click.argument("arguments", nargs=-1, metavar="[NEW] | [-- RUN ARGUMENTS]", shell_complete=runs)
@click.option(
    "--baseline",
    "base",
    metavar="BASE",
    shell_complete=runs,
    help="Run folder, summary.json or baseline folder. Default: the baseline accepted for this "
    "kind of machine.",
)
@click.option(
    "--exact-only",
    is_flag=True,
    help="Judge only counts, bytes and predictions: they have no noise, even on a shared machine.",
)
@click.option(
    "--interleave",
    is_flag=True,
    help="Measure base and new alternately on this machine; RUN ARGUMENTS are those of `run`.",
)
@click.option("--base-python", metavar="FILE", help="Interpreter of the base (default: this one).")
@click.option(
    "--base-dir",
    metavar="DIR",
    help="Folder to run the base in, for example a git worktree (default: this one).",
)
@click.option(
    "--rounds",
    type=Count(2, 1000),
    help="With --interleave: exactly so many launches of each side; with --repeat-until-decided "
    "so many before the first look. Default: 5, and more until all is decided.",
)
@click.option(
    "--separate-runs",
    "separate",
    is_flag=True,
    help="With --interleave: make each launch a run with its own start, checks and traces.",
)
@click.option(
    "--repeat-until-decided",
    "budget_s",
    type=DURATION,
    help="With --interleave: measure two rounds, then more until all is decided, for at most this "
    "long, e.g. 20m. Default: 15m; none with --rounds.",
)
@click.option(
    "--need",
    type=FRACTION,
    help="Exit with 3 where a slowdown of this size could not have been seen, e.g. 3%.",
)
@click.option(
    "--on-inconclusive",
    type=click.Choice(["fail", "warn"]),
    default="fail",
    show_default=True,
    help="warn: exit with 0 where nothing but noise or --need stands against it.",
)
@_shared
def gate(arguments: tuple[str, ...], **flags: Any) -> int:
    """Judge NEW; `GATE_HELP` is what ``--help`` prints."""
    from scalebench.session import results

    result: GateResult
    if flags["interleave"]:
        with _interleaved_runs(arguments, flags) as interleaved:
            result = replace(_interleaved(interleaved, flags), need=flags["need"])
    elif len(arguments) > 1 or any(
        flags[name] for name in ("base_python", "base_dir", "budget_s", "separate")
    ):
        raise UsageError(
            "gate judges one run: name one NEW, and what to compare it with after --baseline. "
            "--base-python, --base-dir, --repeat-until-decided, --separate-runs and arguments of "
            "`run` are for --interleave."
        )
    else:
        result = results.gate(
            arguments[0] if arguments else None,
            flags["base"],
            need=flags["need"],
            exact_only=flags["exact_only"],
            allow_mismatch=flags["allowed"],
        )
    passing: tuple[Overall, ...] = ("inconclusive",) if flags["on_inconclusive"] == "warn" else ()
    result = replace(result, let_pass=passing)
    show_result(result, flags)
    if result.verdict in passing:
        say(
            "scalebench: warning: inconclusive: the noise hides whether something changed. "
            "--on-inconclusive warn lets it pass; more --repeats decide."
        )
    return int(result.exit_code)


def _interleaved_runs(arguments: Sequence[str], flags: Mapping[str, Any]) -> "InterleavedRuns":
    """Return what measures both versions; the runs stay in a separate folder."""
    from datetime import UTC, datetime

    from scalebench.records.paths import default_runs_folder
    from scalebench.session.interleaved.ab_runs import InterleavedRuns
    from scalebench.session.interleaved.run_process import Version

    python, folder = flags["base_python"], flags["base_dir"]
    if flags["base"] is not None or not (python or folder):
        raise UsageError(
            "--interleave measures the base itself. Choose it with --base-python or --base-dir, "
            "and leave out --baseline."
        )
    versions = (
        Version("base", python or sys.executable, Path(folder or ".")),
        Version("new", sys.executable, Path(".")),
    )
    out = default_runs_folder() / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}_interleaved"
    return InterleavedRuns(versions, arguments, out, say, flags["separate"])


def _interleaved(interleaved: "InterleavedRuns", flags: Mapping[str, Any]) -> "GateResult":
    """Measure rounds and judge them.

    ``--rounds`` alone is exactly so many; otherwise it goes on until all is decided, or the time
    is up.
    """
    from scalebench.gate.gate import compare as compare_results
    from scalebench.session.interleaved.ab_runs import until_decided
    from scalebench.session.results import settings_here

    settings = settings_here(flags["exact_only"])

    def judge(base: "Results", new: "Results", error_budget: float = 1.0) -> "GateResult":
        result = compare_results(
            base, new, settings, flags["allowed"], rounds=True, error_budget=error_budget
        )
        return replace(result, need=flags["need"])

    asked, budget_s = flags["rounds"], flags["budget_s"]
    if asked is not None and budget_s is None:
        for _ in range(asked):
            interleaved.measure(asked)
        return judge(*interleaved.results())
    rounds, budget_s = asked or FIRST_ROUNDS, budget_s or BUDGET_S
    say(
        f"scalebench: base and new take turns for at most {units.rough_time(budget_s)}, two rounds "
        f"at least: {rounds} rounds, then more of what is not decided. --repeat-until-decided sets "
        "another time, --rounds a fixed number."
    )
    return until_decided(interleaved, rounds, judge, budget_s, fewest=asked or FEWEST_ROUNDS)


@click.group(cls=WholeSummaries)
def baseline() -> None:
    """Manage accepted baselines in reports/baselines/. Commit them with your code."""


@baseline.command("accept")
@click.argument("run", required=False, shell_complete=runs)
@click.option("--name", help="Folder of the machine; default: by its hardware.")
@click.option(
    "--add",
    is_flag=True,
    help="Add RUN to the accepted runs of the same code instead of replacing them: several show "
    "how much runs differ from job to job.",
)
def accept_(run: str | None, name: str | None, add: bool) -> None:
    """Accept RUN (default: the newest) as the baseline of its machine, one file per suite."""
    from scalebench.gate.baselines import accept
    from scalebench.session.results import results_of

    for path in accept(results_of(run), name, add):
        emit(str(path))


@baseline.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print the list as JSON.")
def list_baselines_(as_json: bool) -> None:
    """List the accepted baselines."""
    from dataclasses import asdict

    from scalebench.gate.baselines import list_baselines

    found = list_baselines()
    if as_json:
        emit(json.dumps([asdict(one) for one in found], indent=1))
        return
    if not found:
        emit("There are no baselines yet. `scalebench baseline accept RUN` makes one.")
    for one in found:
        rows = f"{one.num_rows} row{'' if one.num_rows == 1 else 's'}"
        about = f"{rows}, {one.num_launches} launches, {Path(one.run_id).name} of {one.created}"
        about += f", and {one.num_runs - 1} more" if one.num_runs > 1 else ""
        emit(f"{one.machine}  {one.suite}  {about}")


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", shell_complete=runs)
@click.option("--json", "as_json", is_flag=True, help="Print the series and changes as JSON.")
def history(runs: tuple[str, ...], as_json: bool) -> None:
    """Show how step time and efficiency drift over two RUNs or more, and what changes level."""
    from dataclasses import asdict

    from scalebench.gate.history import history as look_back
    from scalebench.session.results import results_of

    changes = look_back([summary for name in runs for summary in results_of(name).summaries])
    if as_json:
        emit(json.dumps(asdict(changes), indent=1, allow_nan=False))
        return
    from scalebench.report.gate_table import render_history

    emit_for_terminal(lambda screen: render_history(changes, screen))
