"""``scalebench project``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from scalebench.cli.options import WorldSizes
from scalebench.cli.view import emit, emit_for_terminal, resolve_run

if TYPE_CHECKING:
    from scalebench.projection import MeasuredShare
    from scalebench.store import StoredRun


@click.command()
@click.argument("run", required=False)
@click.option("--gpus", required=True, type=WorldSizes(), help="Numbers of ranks, e.g. 16,64,512.")
@click.option(
    "--topology",
    metavar="NAME|FILE",
    help="Nominal links of a machine instead of the calibrated ones: dgx-a100, dgx-h100, …",
)
@click.option(
    "--link-profile",
    type=click.Path(path_type=Path),
    help="Links calibrated elsewhere: a file of calibrate --out.",
)
@click.option(
    "--times-bandwidth",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    help="What if every link carried so many times as much? [1]",
)
@click.option(
    "--gradient-bits",
    type=click.IntRange(1, 64),
    help="What if a gradient took so many bits on the wire? 8: fp8",
)
@click.option(
    "--bucket-mb",
    type=click.FloatRange(min=0, min_open=True),
    help="What if DDP's buckets had this size, in MiB?",
)
@click.option(
    "--microbatches",
    type=click.IntRange(1, 65536),
    help="What if a pipeline's batch were cut into so many microbatches?",
)
@click.option("--hierarchical", is_flag=True, help="Reduce inside the nodes first (--topology).")
@click.option(
    "--measure-shard",
    is_flag=True,
    help="Measure one rank's share at each size, here and alone: its computation and memory.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the projection as JSON.")
def project(
    run: str | None,
    gpus: tuple[int, ...],
    topology: str | None,
    link_profile: Path | None,
    times_bandwidth: float,
    gradient_bits: int | None,
    bucket_mb: float | None,
    microbatches: int | None,
    hierarchical: bool,
    measure_shard: bool,
    as_json: bool,
) -> None:
    """Predict the steps of RUN's cases at numbers of ranks that were not measured.

    Default: the newest run. Exit code 3: nothing in the run supports a projection.
    """
    from scalebench.costmodel.link_profile import LinkProfile
    from scalebench.costmodel.topology import load_topology
    from scalebench.costmodel.what_if import WhatIf
    from scalebench.errors import UsageError
    from scalebench.projection import project as project_run
    from scalebench.report.projection import render_projection
    from scalebench.store import load_run, read_model

    if topology is not None and link_profile is not None:
        raise UsageError("--topology and --link-profile both name the links. Give one of them.")
    stored = load_run(resolve_run(run))
    shares = _measured_shares(stored, gpus) if measure_shard else []
    projection = project_run(
        stored,
        gpus,
        load_topology(topology) if topology is not None else None,
        WhatIf(times_bandwidth, gradient_bits, bucket_mb, hierarchical, microbatches),
        read_model(link_profile, LinkProfile) if link_profile is not None else None,
        shares,
    )
    if as_json:
        emit(projection.model_dump_json(indent=1))
    else:
        emit_for_terminal(lambda *terminal: render_projection(projection, *terminal))


def _measured_shares(run: "StoredRun", world_sizes: tuple[int, ...]) -> "list[MeasuredShare]":
    from scalebench.cli.progress import parts_on
    from scalebench.launch.local import LocalLauncher
    from scalebench.shares import measure_shares

    with parts_on(sys.stderr) as tell, LocalLauncher() as launcher:
        tell("importing torch", None)
        return measure_shares(launcher, run, world_sizes, tell)
