"""The command line. Commands are thin: they read flags, call one function and print.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Sequence
from types import FrameType
from typing import Any, NoReturn

import click

from scalebench.cli import view
from scalebench.cli.calibrate import calibrate, selftest
from scalebench.cli.gate import baseline, compare, gate, history
from scalebench.cli.help import WholeSummaries, help_, meant_by_command
from scalebench.cli.options import config_for
from scalebench.cli.process import make_streams_safe
from scalebench.cli.project import export, project
from scalebench.cli.run import run
from scalebench.cli.search import search
from scalebench.cli.submit import submit
from scalebench.cli.trace_and_import import import_, trace
from scalebench.cli.view import doctor, list_, report, say, show
from scalebench.errors import ExitCode, ScalebenchError, UsageError, defect, unknown_name
from scalebench.records.secret import without_secrets
from scalebench.report.words.terms import plain

LONGEST = 3000
"""Of a longer complaint, with names of others' choice, the middle is left out."""

OTHER_VARIABLES = {f"SCALEBENCH_{name}" for name in ("SECRET", "ROUNDS_ON", "FIELD")}
"""What is in the environment and no option: a world's secret, a gate's rounds, the tests' logs."""

SILENT_S = 5.0
"""How long a process of a world that has nothing to say leaves the word to the first one."""


class Terminated(KeyboardInterrupt):
    """SIGTERM, or SIGHUP of a closed terminal: as Ctrl-C, with another exit code."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(number)
        self.code = ExitCode(128 + number)


def code_of(cause: BaseException | None) -> ExitCode:
    """Return the exit code of a command that a signal has ended."""
    return cause.code if isinstance(cause, Terminated) else ExitCode.INTERRUPTED


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from scalebench import __version__

        click.echo(f"scalebench {__version__}")
        context.exit()


HELP = """Measure how distributed PyTorch training scales, and check every result.

\b
scalebench run --gpus 1,2,4 -- train.py --lr 0.1
                                    your own script, unchanged, at three sizes
scalebench run ddp --gpus 1,2,4,8   the same with a model of scalebench's
scalebench show                     the newest run's table again
scalebench doctor                   what this machine can do, and what is wrong with it
scalebench import LOG:gpus=8 ...    the same table from the logs of jobs that ran elsewhere
scalebench trace FILE...            how much communication a job's Kineto traces hide
scalebench calibrate --gpus 2,4     time collectives by size; fit latency and bandwidth
scalebench project --gpus 16,64     predict the newest run at sizes that were not measured
scalebench search --gpus 64          the mesh, schedule and batch cut that should be fastest
scalebench export --format junit    the newest run for CI, Prometheus, Bencher, a dataframe, …
scalebench gate --baseline BASE     judge the newest run against BASE: for CI
scalebench submit --slurm ... -- run ddp --gpus 2,4   submit a run to a cluster's queue
scalebench selftest --quick         inject known faults and check that they are found
scalebench help TOPIC               what a command, a word of the tables or a field means

\b
Exit codes: 0 ok · 1 regression · 2 usage · 3 inconclusive or not comparable
            4 some launches failed, the rest is saved · 5 the environment cannot run it
            70 a defect of scalebench · 129 SIGHUP · 130 Ctrl-C · 143 SIGTERM
"""


_NO_WORDS: type[click.UsageError] = getattr(
    click.exceptions, "NoArgsIsHelpError", type("NoSuchError", (click.UsageError,), {})
)
"""A group without a command; click before 8.2 answers it by itself."""


class _Unclicked(Exception):
    """An error that click would answer itself: a broken pipe with 1, the end of a file as Abort."""


class _Commands(WholeSummaries):
    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, list(args))
        except click.NoSuchOption as error:
            option = error.option_name
            if any(option in p.opts for p in run.params):
                words = shlex.join(["scalebench", "run", *args])
                raise UsageError(f"{option} is an option of run: {words}.") from None
            raise

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if self.get_command(ctx, args[0]) is None and not ctx.resilient_parsing:
            raise meant_by_command(args, self.commands)
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (OSError, EOFError) as error:
            raise _Unclicked from error


@click.group(
    cls=_Commands,
    help=HELP,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Print the version.",
)
@click.pass_context
def cli(context: click.Context) -> None:
    """Scalebench's commands; `HELP` is what ``--help`` prints."""
    _warn_of_misspelt(cli)
    context.default_map = {"run": config_for(run)}


for command in (run, show, report, list_, doctor, trace, selftest, calibrate, project, submit):
    cli.add_command(command)
for command in (search, compare, gate, baseline, history, export, import_, help_):
    cli.add_command(command)


def _envvars(command: click.Command) -> set[str]:
    """Return the environment variables that a command and those below it read."""
    below = command.commands.values() if isinstance(command, click.Group) else ()
    own = {str(option.envvar) for option in command.params if option.envvar}
    return own.union(*map(_envvars, below))


def _warn_of_misspelt(group: click.Group) -> None:
    """Say which variables look like settings and are none; those of the tests are not meant."""
    given = {n for n in os.environ if n.startswith("SCALEBENCH_") and not n.endswith("_TESTS")}
    known = _envvars(group)
    unknown = given - known - OTHER_VARIABLES
    if unknown and _speaks():
        for name in sorted(unknown):
            told, _, _ = str(unknown_name("setting", name, known)).partition(" Valid: ")
            say(f"scalebench: {told} It is ignored.")


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    make_streams_safe()
    signal.signal(signal.SIGTERM, _terminate)
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # nohup
        signal.signal(signal.SIGHUP, _terminate)
    in_threads: list[ExitCode] = []
    formerly, threading.excepthook = (
        threading.excepthook,
        lambda thread: in_threads.append(_tell(thread.exc_value or SystemExit())),
    )
    try:
        code = cli.main(args=arguments, prog_name="scalebench", standalone_mode=False)
        sys.stdout.flush()
    except _NO_WORDS as error:
        code = ExitCode.OK
        view.emit(error.ctx.get_help() if error.ctx else HELP)
    except BaseException as error:
        # click answers a shell that asks for completions, and leaves with 0
        answered = isinstance(error, SystemExit) and error.code == 0
        code = ExitCode.OK if answered else _tell(_what_happened(error))
    finally:
        threading.excepthook = formerly
    sys.exit(int(code or next(iter(in_threads), ExitCode.OK)))


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    if hasattr(signal, "SIGHUP"):  # kernel and shell both send one when a terminal is closed
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise Terminated(number)


def _what_happened(error: BaseException) -> BaseException:
    """Return the error behind one that stands for it."""
    return error.__cause__ or error if isinstance(error, click.Abort | _Unclicked) else error


def _tell(error: BaseException) -> ExitCode:
    """Say in one line what ended the command; return its exit code. 1 is a verdict, never this."""
    match error:
        case ScalebenchError():
            return _complain(str(error), error.exit_code)
        case click.ClickException():
            return _complain(error.format_message(), ExitCode.USAGE)
        case KeyboardInterrupt():
            return code_of(error)
        case MemoryError():
            return _complain(
                "Memory ran out. Results that were stored are kept.", ExitCode.ENVIRONMENT
            )
        case OSError():
            return _complain(f"{error}. Results stored so far are kept.", ExitCode.ENVIRONMENT)
    return _complain(defect(error), ExitCode.DEFECT)


def _complain(message: str, code: ExitCode) -> ExitCode:
    """Print one line on standard error; of a world's processes only the first one does.

    The others wait for a moment: mpirun ends the world as soon as one process fails, and that must
    not be before the first one has spoken.
    """
    if _speaks():
        line = plain(without_secrets(message))
        if len(line) > LONGEST:
            line = f"{line[: LONGEST // 2]} … {line[-LONGEST // 2 :]}"
        say(f"scalebench: {line}")
    else:
        time.sleep(SILENT_S)
    return code


def _speaks() -> bool:
    from scalebench.launch.external import find_member

    try:
        member = find_member(os.environ)
    except Exception:  # a process that does not know its place speaks
        return True
    return member is None or member.rank == 0
