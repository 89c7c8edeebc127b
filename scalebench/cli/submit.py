"""``scalebench submit``."""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import Count
from scalebench.cli.view import emit
from scalebench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from scalebench.launch.submission import JobRequest


TAKES = {
    "slurm": ("time", "partition", "account", "cpus_per_task"),
    "kubernetes": ("image", "claim", "runtime"),
    "jobset": ("image", "claim"),
    "skypilot": ("image", "gpu_type"),
}
"""Where a run is submitted to → the options that only some of these take."""


@click.command()
@click.option("--slurm", "where", flag_value="slurm", help="A batch script for sbatch.")
@click.option(
    "--kubernetes", "where", flag_value="kubernetes", help="Manifests for kubectl apply -f -."
)
@click.option("--jobset", "where", flag_value="jobset", help="The same, as a JobSet.")
@click.option("--skypilot", "where", flag_value="skypilot", help="A task for sky launch.")
@click.option("--name", default="scalebench", help="Name of the job. [scalebench]")
@click.option("--nodes", type=Count(1, 10_000), default=1, help="Number of machines. [1]")
@click.option("--ranks-per-node", type=Count(1, 1024), required=True, help="Ranks per node.")
@click.option("--gpus-per-node", type=Count(0, 1024), default=0, help="GPUs per node. [0]")
@click.option("--time", help="Slurm: time limit of the job, e.g. 30:00.")
@click.option("--partition", help="Slurm: partition.")
@click.option("--account", help="Slurm: account.")
@click.option("--cpus-per-task", type=Count(1, 1024), help="Slurm: cores per rank.")
@click.option("--image", help="Container image with scalebench; not for Slurm.")
@click.option("--claim", help="Kubernetes: volume claim for the run, mounted as /runs.")
@click.option(
    "--runtime", help="Kubernetes: make a TrainJob for this runtime, e.g. torch-distributed."
)
@click.option("--gpu-type", help="SkyPilot: its name of the GPU, e.g. H100.")
@click.option("--dry-run", is_flag=True, help="Print it; do not submit it.")
@click.argument("command", nargs=-1, metavar="-- run ...")
@click.pass_context
def submit(context: click.Context, /, command: tuple[str, ...], **flags: Any) -> None:
    """Submit a run to a cluster's queue: scalebench submit --slurm ... -- run ddp --gpus 2,4."""
    from scalebench.launch.submission import JobRequest

    size = (flags["nodes"], flags["ranks_per_node"], flags["gpus_per_node"])
    request = JobRequest(flags["name"], *size, command)
    where = flags["where"]
    given: dict[str, str] = {}
    if where is None:
        raise UsageError(f"Say where to submit to: {_options(TAKES)}.")
    _check_run(request, here=where == "slurm")
    for name in (name for names in TAKES.values() for name in names if flags[name] is not None):
        if name not in TAKES[where]:
            takers = _options(one for one in TAKES if name in TAKES[one])
            raise UsageError(f"{_options([name])} is for {takers}. Leave it out.")
        given[name.replace("_", "-") if where == "slurm" else name] = str(flags[name])
    if where == "slurm":
        _to_slurm(request, given, flags["dry_run"])
    else:
        text = _printed(request, where, **given, dry_run=flags["dry_run"])
        emit(text.removesuffix("\n"))
    context.exit(int(ExitCode.OK))


def _options(names: Iterable[str]) -> str:
    return " or ".join("--" + name.replace("_", "-") for name in names)


def _check_run(request: "JobRequest", here: bool) -> None:
    """Refuse now what would end the job as soon as it has waited in the queue.

    ``here``: whether the job sees the files of this machine, as Slurm's nodes do.
    """
    from scalebench.cli.options import SCRIPT, config_for
    from scalebench.cli.run import run, wanted

    context = run.make_context("run", list(request.command[1:]), default_map=config_for(run))
    flags = {**context.params, "script": context.meta.get(SCRIPT)}
    num_ranks = request.nodes * request.ranks_per_node
    too_many = [n for n in flags["gpus"] or () if n > num_ranks]
    if too_many:
        raise UsageError(
            f"--gpus asks for {too_many[-1]} ranks, and the job has {num_ranks}: --nodes "
            f"{request.nodes} with --ranks-per-node {request.ranks_per_node}. Give --nodes "
            f"{-(-too_many[-1] // request.ranks_per_node)}, or leave out what is too large."
        )
    if not here:
        return
    suites, asked = wanted(flags)
    on_gpus = asked.device == "cuda" or (asked.device is None and request.gpus_per_node > 0)
    if suites and (on_gpus or asked.device == "cpu"):  # else only the nodes know the device
        from scalebench.session.plan import Machine, make_plan

        make_plan(asked, suites, Machine(num_ranks if on_gpus else 0, num_ranks))


def _to_slurm(request: "JobRequest", options: dict[str, str], dry_run: bool) -> None:
    from scalebench.launch.submission import batch_script
    from scalebench.launch.submission import submit as hand_over

    script = batch_script(request, options, sys.executable)
    if dry_run:
        emit(script.removesuffix("\n"))
        return
    path = Path(f"{request.name}.sbatch")
    emit(f"Job {hand_over(script, path)}, from {path}")


def _printed(
    request: "JobRequest",
    where: str,
    dry_run: bool,
    image: str | None = None,
    claim: str | None = None,
    runtime: str | None = None,
    gpu_type: str | None = None,
) -> str:
    from scalebench.launch import submission

    if not dry_run:
        reader = "sky launch" if where == "skypilot" else "kubectl apply -f -"
        raise UsageError(
            f"scalebench submits nothing with --{where} by itself. Add --dry-run, and hand what it "
            f"prints to {reader}."
        )
    if image is None:
        raise UsageError(f"--{where} needs --image: a container image with scalebench installed.")
    if where == "skypilot":
        return submission.task(request, image, gpu_type)
    if where == "jobset":
        return submission.as_list(submission.job_set(request, image, claim))
    if runtime is None:
        return submission.as_list(submission.indexed_job(request, image, claim))
    if claim is not None:
        raise UsageError("--claim is for a plain Job; with --runtime, the runtime has the volumes.")
    return submission.as_list(submission.train_job(request, image, runtime))
