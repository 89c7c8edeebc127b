"""``scalebench selftest``."""

import secrets
import sys
from typing import TYPE_CHECKING

import click

from scalebench.cli.options import Count
from scalebench.cli.view import emit_for_terminal, emit_json, say
from scalebench.errors import EnvironmentUnfit, ExitCode

if TYPE_CHECKING:
    from scalebench.records.certificate import Form


@click.command()
@click.option("--quick", is_flag=True, help="Finish within a minute; skip the longer checks.")
@click.option(
    "--seed",
    type=Count(min=0),
    help="Seed of an earlier self-test, to inject the same faults.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the certificate as JSON.")
def selftest(quick: bool, seed: int | None, as_json: bool) -> int:
    """Inject known delays, links and slowdowns, and check that scalebench recovers them.

    The certificate is saved, and later runs on this machine store its number. Exit code 4: a
    line failed. Exit code 3: this machine is too noisy to decide any line.
    """
    from scalebench import machine
    from scalebench.cli.progress import parts_on
    from scalebench.launch.local import LocalLauncher
    from scalebench.report.tables.certificate import render_certificate
    from scalebench.session.selftest import certificates, self_test

    drawn = secrets.randbelow(1_000_000) if seed is None else seed
    with parts_on(sys.stderr) as on_progress, LocalLauncher() as launcher:
        environment = machine.fingerprint(launcher.survey())
        form: Form = "quick" if quick else "full"
        certificate = self_test(launcher, form, drawn, environment, on_progress)
    if as_json:
        emit_json(certificate)
    else:
        emit_for_terminal(lambda *terminal: render_certificate(certificate, *terminal))
    try:
        certificates.keep(certificate)
    except OSError as error:
        raise EnvironmentUnfit(
            f"The certificate cannot be saved: {error.filename}: {error.strerror}. Set "
            "XDG_CACHE_HOME to a writable folder."
        ) from error
    for line in certificate.failed:
        say(f"scalebench: {line.name} failed: {line.reason}")
    return certificate_exit_code(len(certificate.failed), certificate.num_passed)


def certificate_exit_code(num_failed: int, num_passed: int) -> ExitCode:
    """Return what the self-test answers to its caller."""
    if num_failed:
        return ExitCode.CELLS_FAILED
    return ExitCode.OK if num_passed else ExitCode.INCONCLUSIVE
