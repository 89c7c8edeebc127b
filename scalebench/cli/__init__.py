"""The command line. Commands are thin: they read flags, call one function and print.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

import os
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from scalebench.cli.calibrate import calibrate
from scalebench.cli.doctor import doctor
from scalebench.cli.export import export
from scalebench.cli.gate import baseline, compare, gate, history
from scalebench.cli.options import config_for
from scalebench.cli.project import project
from scalebench.cli.run import run
from scalebench.cli.search import search
from scalebench.cli.selftest import selftest
from scalebench.cli.submit import submit
from scalebench.cli.trace import trace
from scalebench.cli.view import list_, report, show
from scalebench.errors import ExitCode, ScalebenchError

SILENT_S = 5.0
"""How long a process of a world that has nothing to say leaves the word to the first one."""


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


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
scalebench trace FILE...            how much communication a job's Kineto traces hide
scalebench calibrate --gpus 2,4     time collectives by size; fit latency and bandwidth
scalebench project --gpus 16,64     predict the newest run at sizes that were not measured
scalebench search --gpus 64          the mesh, schedule and batch cut that should be fastest
scalebench export --format junit    the newest run for CI, Prometheus, Bencher, a dataframe, …
scalebench gate --baseline BASE     judge the newest run against BASE: for CI
scalebench submit --slurm ... -- run ddp --gpus 2,4   submit a run to a cluster's queue
scalebench selftest --quick         inject known faults and check that they are found

\b
Exit codes: 0 ok · 1 regression · 2 usage · 3 inconclusive or not comparable
            4 some cells failed, the rest is saved · 5 the environment cannot run it
            130 Ctrl-C · 143 SIGTERM
"""


@click.group(
    help=HELP, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
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
    context.default_map = {"run": config_for(run)}


for command in (run, show, report, list_, doctor, trace, selftest, calibrate, project, submit):
    cli.add_command(command)
for command in (search, compare, gate, baseline, history, export):
    cli.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        code = cli.main(args=arguments, prog_name="scalebench", standalone_mode=False)
    except ScalebenchError as error:
        code = _complain(str(error), error.exit_code)
    except click.ClickException as error:
        code = _complain(error.format_message(), ExitCode.USAGE)
    except click.Abort as abort:  # click's own word for any KeyboardInterrupt
        was_sigterm = isinstance(abort.__cause__, Terminated)
        code = ExitCode.TERMINATED if was_sigterm else ExitCode.INTERRUPTED
    except OSError as error:
        code = _complain(f"{error}. Results stored so far are kept.", ExitCode.ENVIRONMENT)
    sys.exit(int(code or 0))


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _complain(message: str, code: ExitCode) -> ExitCode:
    """Print one line on standard error; of a world's processes only the first one does.

    The others wait for a moment: mpirun ends the world as soon as one process fails, and that must
    not be before the first one has spoken.
    """
    if _speaks():
        click.echo(f"scalebench: {' '.join(message.split())}", err=True)
    else:
        time.sleep(SILENT_S)
    return code


def _speaks() -> bool:
    from scalebench.launch.external import find_member

    try:
        member = find_member(os.environ)
    except ScalebenchError:
        return True
    return member is None or member.rank == 0
