"""The command line. Commands are thin: they read flags, call one function and print.

Nothing heavy is imported before a command runs, so that ``--help`` answers at once.
"""

import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from scalebench.cli.doctor import doctor
from scalebench.cli.options import config_for
from scalebench.cli.run import run
from scalebench.cli.view import list_, report, show
from scalebench.errors import ExitCode, ScalebenchError


class Terminated(KeyboardInterrupt):
    """SIGTERM: as Ctrl-C, with another exit code."""


def _version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from scalebench import __version__

        click.echo(f"scalebench {__version__}")
        context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
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
    r"""Measure how distributed PyTorch training scales, and see where the rest went.

    \b
    scalebench run ddp --gpus 1,2,4,8     train for real at four sizes, print the table
    scalebench show                       the newest run's table again
    scalebench doctor                     what this machine can do, and what is wrong with it

    Exit codes: 0 ok, 1 regression, 2 usage, 3 inconclusive or not comparable, 4 some cells
    failed (the rest is saved), 5 the environment cannot run it, 130 Ctrl-C, 143 SIGTERM.
    """
    context.default_map = {"run": config_for(run)}


for command in (run, show, report, list_, doctor):
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
    except Terminated:
        code = ExitCode.TERMINATED
    except (KeyboardInterrupt, click.Abort):
        code = ExitCode.INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = ExitCode.OK
    sys.exit(int(code or 0))


def _terminate(_signal: int, _frame: FrameType | None) -> NoReturn:
    raise Terminated


def _complain(message: str, code: ExitCode) -> ExitCode:
    """Print one line on standard error."""
    click.echo(f"scalebench: {' '.join(message.split())}", err=True)
    return code
