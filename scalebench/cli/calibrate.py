"""``scalebench calibrate`` and ``scalebench selftest``."""

import json
import secrets
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import (
    CPU_SHARES,
    MESSAGE_SIZE,
    RATES,
    WORLD_SIZES,
    Count,
    as_run_launcher,
    device_option,
    hosts_options,
    option,
    trust_network,
)
from scalebench.cli.process import launcher_for, place_in_world
from scalebench.cli.run import virtual_hosts_from
from scalebench.cli.view import emit, emit_for_terminal, emit_json, say, writing
from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError, unknown_name

if TYPE_CHECKING:
    from scalebench.costmodel.links.profile import LinkProfile
    from scalebench.records.certificate import Form
    from scalebench.session.calibration.sweeps import Sweeps
    from scalebench.spec import Device
    from scalebench.spec.world import World


@click.command()
@option("--gpus", type=WORLD_SIZES, help="Numbers of ranks. Default: 2,4,… up to the devices.")
@device_option
@click.option(
    "--op",
    "operations",
    metavar="OP,...",
    help="Operations. Default: all. With --import: the operation of logs that do not name it.",
)
@click.option("--dtype", "dtypes", default="float32", help="float32,bfloat16,int8 [float32]")
@click.option(
    "--max-bytes", type=MESSAGE_SIZE, help="Largest size. Default: 4Mi on CPU, 256Mi on CUDA."
)
@click.option("--repeats", type=Count(min=3), default=5, help="Timings per size. [5]")
@click.option(
    "--algorithms",
    metavar="NAME,...|all",
    help="scalebench's own all-reduces to time as well as the backend's.",
)
@option("--launcher", **as_run_launcher)
@trust_network
@option("--link", "--link-intra", "link", type=RATES, help="Rate of the virtual hosts' links.")
@option(
    "--cpus-per-rank", type=CPU_SHARES, help="Share of a core that each rank may use, e.g. 0.2."
)
@hosts_options
@click.option(
    "--import",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Fit a log of nccl-tests (text or JSON) instead of measuring; may be repeated.",
)
@click.option(
    "--world-size", type=Count(min=2), help="Number of ranks of imported logs that do not give it."
)
@click.option(
    "--against",
    metavar="LINK",
    help="Compare busbw with a nominal link: nvlink4, or of a node with eight 8xinfiniband-ndr.",
)
@click.option("--out", type=click.Path(path_type=Path), help="Write the link profile to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print points and fits as JSON.")
@click.pass_context
def calibrate(context: click.Context, /, **flags: Any) -> None:
    """Time collectives at many sizes, verify every result, and fit latency and bandwidth.

    With --import, fit what nccl-tests measured on a cluster instead. Exit code 4: a result was
    wrong.
    """
    from scalebench.costmodel.links.profile import against_link, named_link
    from scalebench.report.tables.predictions import render_calibration

    if flags["against"] is not None:
        named_link(flags["against"])
    profile = _imported(flags) if flags["logs"] else _measured(flags)
    verdicts = against_link(profile.points, flags["against"]) if flags["against"] else []
    if flags["out"] is not None:
        from scalebench.records.files import write_model

        with writing("link profile", flags["out"]):
            write_model(flags["out"], profile)
        say(f"Profile {flags['out']}")
    if flags["as_json"]:
        content = {**as_object(profile), "against": [v.model_dump() for v in verdicts]}
        emit(json.dumps(content, indent=1, allow_nan=False))
    else:
        said = [verdict.sentence for verdict in verdicts]
        emit_for_terminal(lambda screen: render_calibration(profile, said, screen))
    uncounted = sum(point.failed_check for point in profile.points)
    if profile.num_wrong:
        say(f"scalebench: {profile.num_wrong} elements of results are wrong.")
    if uncounted:
        say(f"scalebench: {uncounted} results are wrong; the log does not count their elements.")
    context.exit(int(ExitCode.CELLS_FAILED if profile.num_wrong or uncounted else ExitCode.OK))


def as_object(profile: "LinkProfile") -> dict[str, Any]:
    """Return the profile as ``--json`` prints it: one flat fit for each regime."""
    content = profile.model_dump(mode="json", exclude={"fits"})
    return content | {"fits": [row for fit in profile.fits for row in fit.rows()]}


def _imported(flags: dict[str, Any]) -> "LinkProfile":
    from scalebench.session.calibration.sweeps import imported

    operations = _listed(flags["operations"])
    if len(operations) > 1:
        raise UsageError(
            "--op with --import takes one operation: that of logs that do not name it."
        )
    return imported(flags["logs"], flags["world_size"], next(iter(operations), None))


def _measured(flags: dict[str, Any]) -> "LinkProfile":
    from scalebench import machine
    from scalebench.cli.progress import parts_on
    from scalebench.launch.local import LocalLauncher
    from scalebench.session.calibration.sweeps import calibrate as measure
    from scalebench.session.machine.survey import refusal
    from scalebench.session.plan import Machine, Request
    from scalebench.session.plan.make import choose_device

    if flags["world_size"] is not None:
        raise UsageError("--world-size is for --import; give --gpus for what is measured here.")
    hosts = virtual_hosts_from(flags)
    _check_names(flags)
    member = place_in_world(flags)
    launcher = launcher_for(flags, member) or LocalLauncher()
    with parts_on(sys.stderr) as on_progress, closing(launcher):
        on_progress("importing torch", None)
        survey = launcher.survey()
        environment = machine.fingerprint(survey, launcher.world)
        here = Machine(
            num_gpus=len(environment["devices"]),
            num_cores=machine.num_cores(),
            unusable=refusal(environment),
        )
        asked = None if flags["device"] == "auto" else flags["device"]
        device = choose_device(Request(device=asked, virtual_hosts=hosts), here)
        num_devices = here.num_gpus if device == "cuda" else here.num_cores
        if launcher.world is not None:
            num_devices = launcher.world.capacity(on_gpus=device == "cuda")
        sweeps = _sweeps(flags, num_devices, device, launcher.world)
        if hosts is not None:
            hosts.check(sweeps.world_sizes, machine.num_cores())
        return measure(launcher, sweeps, device, num_devices, environment, on_progress)


def _check_names(flags: dict[str, Any]) -> None:
    from scalebench.spec.base import COLLECTIVES, DTYPES, OWN_ALGORITHMS

    for name in _listed(flags["operations"]):
        if name not in COLLECTIVES:
            raise unknown_name("operation", name, COLLECTIVES)
    for name in _listed(flags["dtypes"]):
        if name not in DTYPES:
            raise unknown_name("dtype", name, DTYPES)
    for name in _listed(flags["algorithms"]):
        if name not in ("all", *OWN_ALGORITHMS):
            raise unknown_name("algorithm", name, OWN_ALGORITHMS)


def _listed(text: str | None) -> list[str]:
    return [name.strip() for name in (text or "").split(",") if name.strip()]


def _sweeps(
    flags: dict[str, Any], num_devices: int, device: "Device", world: "World | None"
) -> "Sweeps":
    from scalebench.session.calibration.sweeps import Sweeps
    from scalebench.spec import Collectives
    from scalebench.spec.base import COLLECTIVES, OWN_ALGORITHMS

    sizes = flags["gpus"] or tuple(n for n in (2, 4, 8, 16) if n <= max(num_devices, 2))
    if min(sizes) < 2:
        raise UsageError("--gpus 1: one rank sends nothing. Give 2 ranks or more.")
    missing = world.too_small_for(max(sizes)) if world is not None else None
    if missing is not None:
        raise UsageError(f"--gpus {max(sizes)}: {missing}.")
    if device == "cuda" and max(sizes) > num_devices:
        raise EnvironmentUnfit(f"--gpus {max(sizes)}: there are {num_devices} CUDA devices here.")
    own = _listed(flags["algorithms"])
    operations = _listed(flags["operations"]) or COLLECTIVES
    asked = Collectives(
        operations=tuple(name for name in COLLECTIVES if name in operations),
        dtypes=tuple(_listed(flags["dtypes"])),
        algorithms=OWN_ALGORITHMS if "all" in own else tuple(own),
        max_bytes=flags["max_bytes"],
        repeats=flags["repeats"],
    )
    return Sweeps.of(asked, sizes, device, virtual_hosts_from(flags))


@click.command()
@click.option("--quick", is_flag=True, help="Finish within a minute; skip the longer checks.")
@click.option(
    "--seed", type=Count(min=0), help="Seed of an earlier self-test, to inject the same faults."
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
    from scalebench.report.certificate import render_certificate
    from scalebench.session.selftest import full, self_test

    drawn = secrets.randbelow(1_000_000) if seed is None else seed
    with parts_on(sys.stderr) as on_progress, LocalLauncher() as launcher:
        environment = machine.fingerprint(launcher.survey())
        form: Form = "quick" if quick else "full"
        certificate = self_test(launcher, form, drawn, environment, on_progress)
    if as_json:
        emit_json(certificate)
    else:
        emit_for_terminal(lambda screen: render_certificate(certificate, screen))
    try:
        full.keep(certificate)
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
