"""What becomes of a run elsewhere: ``scalebench project`` and ``scalebench export``."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli import options
from scalebench.cli.options import DURATION, POSITIVE, WORLD_SIZES, Count
from scalebench.cli.view import emit, emit_for_terminal, emit_json, say, writing
from scalebench.errors import UsageError, unknown_name
from scalebench.records.paths import resolve_run

if TYPE_CHECKING:
    from scalebench.analysis.projection.recovery import MeasuredShard
    from scalebench.analysis.run import StoredRun
    from scalebench.records.summary import Summary

WHAT_IF = ("times_bandwidth", "gradient_bits", "bucket_mb", "hierarchical", "microbatches")
"""Options that are the fields of a `scalebench.costmodel.what_if.WhatIf`, in their order."""


@click.command()
@click.argument("run", required=False, shell_complete=options.runs)
@click.option("--gpus", required=True, type=WORLD_SIZES, help="Numbers of ranks, e.g. 16,64,512.")
@click.option(
    "--topology",
    metavar="NAME|FILE",
    help="Nominal links of a machine instead of the calibrated ones: dgx-a100, dgx-h100, …",
)
@click.option(
    "--link-profile",
    type=click.Path(path_type=Path),
    help="Link profile of another machine: a file written by calibrate --out.",
)
@click.option(
    "--times-bandwidth",
    type=POSITIVE,
    default=1.0,
    help="Multiply the bandwidth of every link by this factor. [1]",
)
@click.option(
    "--gradient-bits",
    type=Count(1, 64),
    help="Send each gradient element in this many bits. 8: fp8",
)
@click.option("--bucket-mb", type=POSITIVE, help="Size of DDP's buckets, in MiB.")
@click.option("--microbatches", type=Count(1, 65536), help="Number of microbatches of a pipeline.")
@click.option(
    "--hierarchical", is_flag=True, help="Reduce inside each node first (needs --topology)."
)
@click.option(
    "--measure-shard",
    is_flag=True,
    help="Measure one rank's shard at each size, here and alone: its computation and memory.",
)
@click.option(
    "--noise-scale",
    type=POSITIVE,
    help="Gradient noise scale, samples: predict the time to a loss. [that of a race of RUN]",
)
@click.option("--mtbf", type=DURATION, help="Mean time between failures of the job, e.g. 3h.")
@click.option(
    "--device-mtbf",
    type=DURATION,
    help="The same of one device, e.g. 50000h: N devices fail N times as often.",
)
@click.option("--interval", type=DURATION, help="With a failure rate: training between saves.")
@click.option(
    "--restart", type=DURATION, help="From a failure until the job trains again. [as measured]"
)
@click.option("--checkpoint-cost", type=DURATION, help="What a save costs training. [as measured]")
@click.option("--json", "as_json", is_flag=True, help="Print the projection as JSON.")
def project(run: str | None, gpus: tuple[int, ...], **flags: Any) -> int:
    """Predict the steps of RUN's cases at numbers of ranks that were not measured.

    Default: the newest run. With a failure rate (--mtbf or --device-mtbf) and a run that measured
    checkpoints: how often to save, and what failures leave of the time. Exit code 3: nothing in the
    run supports a projection.
    """
    from scalebench.analysis.projection.project import project as project_run
    from scalebench.analysis.projection.recovery import (
        FailureRates,
        NothingToProject,
        Projection,
        project_recovery,
    )
    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise
    from scalebench.costmodel.links.profile import LinkProfile
    from scalebench.costmodel.links.topology import load_topology
    from scalebench.costmodel.what_if import WhatIf
    from scalebench.errors import ExitCode
    from scalebench.records.files import read_model
    from scalebench.report.tables.projection import render_projection, render_recovery

    topology, link_profile = flags["topology"], flags["link_profile"]
    if topology is not None and link_profile is not None:
        raise UsageError("--topology and --link-profile both name the links. Give one of them.")
    stored = load_run(resolve_run(run))
    shards = _measured_shards(stored, gpus) if flags["measure_shard"] else []
    names = ("mtbf", "device_mtbf", "interval", "restart", "checkpoint_cost")
    rates = FailureRates(*(flags[name] for name in names))
    recovery = (
        project_recovery(summarise(stored).rows, gpus, rates) if rates != FailureRates() else []
    )
    try:
        projection = project_run(
            stored,
            gpus,
            load_topology(topology) if topology is not None else None,
            WhatIf(*(flags[name] for name in WHAT_IF)),
            read_model(link_profile, LinkProfile) if link_profile is not None else None,
            shards,
            noise_scale=flags["noise_scale"],
        )
    except NothingToProject as refused:
        if not recovery:
            raise
        projection = Projection.without_steps(stored.info.run_id, str(refused))
    projection = projection.model_copy(update={"recovery": tuple(recovery)})
    as_json = flags["as_json"]
    if as_json:
        emit_json(projection)
    elif projection.rows:
        emit_for_terminal(lambda screen: render_projection(projection, screen))
    if recovery and not as_json:
        run_id = projection.run_id
        emit_for_terminal(lambda screen: render_recovery(recovery, run_id, screen))
    has_step = bool(recovery) or any(row.step_s is not None for row in projection.rows)
    return int(ExitCode.OK if has_step else ExitCode.INCONCLUSIVE)


def _measured_shards(run: "StoredRun", world_sizes: tuple[int, ...]) -> "list[MeasuredShard]":
    from scalebench.cli.progress import parts_on
    from scalebench.launch.local import LocalLauncher
    from scalebench.session.cell_runner import measure_shards

    with parts_on(sys.stderr) as on_progress, LocalLauncher() as launcher:
        on_progress("importing torch", None)
        return measure_shards(launcher, run, world_sizes, on_progress)


IN_TWO = "github-action-benchmark"
"""The format that is two files: numbers that are better when bigger, and when smaller."""


@click.command()
@click.argument("run", required=False, shell_complete=options.runs)
@click.option(
    "--format",
    "name",
    required=True,
    metavar="FORMAT",
    shell_complete=options.formats,
    help="pytest-benchmark, github-action-benchmark (two files, or -bigger and -smaller apart), "
    "bencher, openmetrics, junit, csv, parquet or chrome-trace; tensorboard, wandb and mlflow "
    "write a folder.",
)
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write to this file, or folder, instead of standard output.",
)
def export(run: str | None, name: str, out: Path | None) -> None:
    """Write RUN (default: the newest run) in the format of another tool.

    Nothing is measured. Missing values stay null, with a reason if the format has room for one.
    """
    from scalebench.report.export import FORMATS
    from scalebench.report.export.trackers import TRACKERS

    wanted = {f"{IN_TWO}-{better}": better for better in ("bigger", "smaller")}
    if name not in {IN_TWO, *FORMATS, *TRACKERS}:
        raise unknown_name("format", name, [*FORMATS, *TRACKERS, IN_TWO])
    if name == IN_TWO and out is None:
        raise UsageError(
            f"--format {IN_TWO} writes two files, because the action takes one direction per file: "
            f"add --out FILE.json, or print one of them with {' or '.join(wanted)}."
        )
    if name == "parquet" and out is None:
        raise UsageError("--format parquet is not text: add --out FILE.parquet.")
    if name in TRACKERS and out is None:
        raise UsageError(f"--format {name} writes a folder: add --out FOLDER.")

    from scalebench.analysis.run import load_run
    from scalebench.analysis.summarise import summarise

    stored = load_run(resolve_run(run))
    summary = summarise(stored)
    if name in TRACKERS and out is not None:
        with writing("export", out):
            TRACKERS[name](stored, summary, out)
        emit(str(out))
    elif name != IN_TWO:
        _deliver(name, stored, summary, out)
    elif out is not None:
        for one, better in wanted.items():
            _deliver(one, stored, summary, out.with_name(f"{out.stem}.{better}{out.suffix}"))


def _deliver(name: str, stored: "StoredRun", summary: "Summary", out: Path | None) -> None:
    """Write one format to a file, or print it; say on standard error what it has no place for."""
    from scalebench.report.export import FORMATS
    from scalebench.report.export.measures import split, why_left_out

    wanted = FORMATS[name]
    content = wanted.export(stored, summary)
    if wanted.only_good:
        for row in split(summary.rows)[1]:
            say(f"scalebench: left out: {why_left_out(row)}")
    if out is None:
        emit(str(content).removesuffix("\n"))
        return
    _write(out, content)
    emit(str(out))


def _write(out: Path, content: str | bytes) -> None:
    """Write a file that others may read, as far as the umask lets them."""
    from scalebench.records.files import write_atomic

    umask = os.umask(0)
    os.umask(umask)
    with writing("export", out):
        write_atomic(out, content)
        out.chmod(0o666 & ~umask)
