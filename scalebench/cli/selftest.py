"""``scalebench selftest``."""

import secrets
import sys
from typing import TYPE_CHECKING

import click

from scalebench.errors import EnvironmentUnfit, ExitCode

if TYPE_CHECKING:
    from scalebench.certificate import Form


@click.command()
@click.option("--quick", is_flag=True, help="Within a minute; leaves out what takes longer.")
@click.option("--seed", type=click.IntRange(min=0), help="Inject the same as an earlier self-test.")
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def selftest(quick: bool, seed: int | None, as_json: bool) -> int:
    """Inject known delays, links and slowdowns, and check that scalebench recovers them.

    The certificate is kept: runs on this machine bear its number from then on. Exit code 4: a
    line failed. Exit code 3: the noise of this machine let no line be decided.
    """
    from scalebench import certificates, machine
    from scalebench.cli.progress import parts_on
    from scalebench.cli.view import emit, emit_for_terminal
    from scalebench.launch.local import LocalLauncher
    from scalebench.report.certificate import render_certificate
    from scalebench.selftest import self_test

    drawn = secrets.randbelow(1_000_000) if seed is None else seed
    with parts_on(sys.stderr) as tell, LocalLauncher() as launcher:
        environment = machine.fingerprint(launcher.survey())
        form: Form = "quick" if quick else "full"
        certificate = self_test(launcher, form, drawn, environment, tell)
    if as_json:
        emit(certificate.model_dump_json(indent=1))
    else:
        emit_for_terminal(lambda *terminal: render_certificate(certificate, *terminal))
    try:
        certificates.keep(certificate)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The certificate cannot be kept: {error.filename}: {error.strerror}. Set "
            "XDG_CACHE_HOME to a folder that can be written."
        ) from error
    for line in certificate.failed:
        click.echo(f"scalebench: {line.name} failed: {line.reason}", err=True)
    return certificate_exit_code(len(certificate.failed), certificate.num_passed)


def certificate_exit_code(num_failed: int, num_passed: int) -> ExitCode:
    """Return what the self-test answers to its caller."""
    if num_failed:
        return ExitCode.CELLS_FAILED
    return ExitCode.OK if num_passed else ExitCode.INCONCLUSIVE
