"""``scalebench submit``."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import Count
from scalebench.cli.view import emit
from scalebench.errors import ExitCode, UsageError

if TYPE_CHECKING:
    from scalebench.launch.submission.request import JobRequest


OF_SLURM = ("time", "partition", "account", "cpus-per-task")
OF_KUBERNETES = ("image", "claim", "runtime")
"""Options of one kind of cluster alone."""


@click.command()
@click.option("--slurm", "where", flag_value="slurm", help="A batch script for sbatch.")
@click.option(
    "--kubernetes", "where", flag_value="kubernetes", help="Manifests for kubectl apply -f -."
)
@click.option("--name", default="scalebench", help="Name of the job. [scalebench]")
@click.option("--nodes", type=Count(1, 10_000), default=1, help="Number of machines. [1]")
@click.option("--ranks-per-node", type=Count(1, 1024), required=True, help="Ranks per node.")
@click.option("--gpus-per-node", type=Count(0, 1024), default=0, help="GPUs per node. [0]")
@click.option("--time", help="Slurm: time limit of the job, e.g. 30:00.")
@click.option("--partition", help="Slurm: partition.")
@click.option("--account", help="Slurm: account.")
@click.option("--cpus-per-task", type=Count(1, 1024), help="Slurm: cores per rank.")
@click.option("--image", help="Kubernetes: container image with scalebench.")
@click.option("--claim", help="Kubernetes: volume claim for the run, mounted as /runs.")
@click.option(
    "--runtime", help="Kubernetes: make a TrainJob for this runtime, e.g. torch-distributed."
)
@click.option("--dry-run", is_flag=True, help="Print it; do not submit it.")
@click.argument("command", nargs=-1, metavar="-- run ...")
@click.pass_context
def submit(context: click.Context, /, command: tuple[str, ...], **flags: Any) -> None:
    """Submit a run to a cluster's queue: scalebench submit --slurm ... -- run ddp --gpus 2,4."""
    from scalebench.launch.submission.request import JobRequest

    size = (flags["nodes"], flags["ranks_per_node"], flags["gpus_per_node"])
    request = JobRequest(flags["name"], *size, command)
    where = flags["where"]
    _check_run(request, here=where == "slurm")
    of_slurm = {name: flags[name.replace("-", "_")] for name in OF_SLURM}
    of_kubernetes = {name: flags[name] for name in OF_KUBERNETES}
    if where == "slurm":
        _refuse(of_kubernetes, "--kubernetes")
        given = {name: str(value) for name, value in of_slurm.items() if value is not None}
        _to_slurm(request, given, flags["dry_run"])
    elif where == "kubernetes":
        _refuse(of_slurm, "--slurm")
        text = _for_kubernetes(request, **of_kubernetes, dry_run=flags["dry_run"])
        emit(text.removesuffix("\n"))
    else:
        raise UsageError("Say where to submit to: --slurm or --kubernetes.")
    context.exit(int(ExitCode.OK))


def _check_run(request: "JobRequest", here: bool) -> None:
    """Refuse now what would end the job as soon as it has waited in the queue.

    Args:
        request: What is submitted.
        here: Whether the job sees the files of this machine, as Slurm's nodes do.
    """
    from scalebench.cli.completion import SCRIPT
    from scalebench.cli.options import config_for
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


def _refuse(options: dict[str, Any], where: str) -> None:
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UsageError(f"--{given[0]} is for {where}. Leave it out.")


def _to_slurm(request: "JobRequest", options: dict[str, str], dry_run: bool) -> None:
    from scalebench.launch.submission.slurm import batch_script
    from scalebench.launch.submission.slurm import submit as hand_over

    script = batch_script(request, options, sys.executable)
    if dry_run:
        emit(script.removesuffix("\n"))
        return
    path = Path(f"{request.name}.sbatch")
    emit(f"Job {hand_over(script, path)}, from {path}")


def _for_kubernetes(
    request: "JobRequest",
    image: str | None,
    claim: str | None,
    runtime: str | None,
    dry_run: bool,
) -> str:
    from scalebench.launch.submission.kubernetes import as_list, indexed_job, train_job

    if not dry_run:
        raise UsageError(
            "scalebench submits nothing to Kubernetes by itself. Add --dry-run, and hand what it "
            "prints to kubectl apply -f -."
        )
    if image is None:
        raise UsageError("--kubernetes needs --image: a container image with scalebench installed.")
    if runtime is None:
        return as_list(indexed_job(request, image, claim))
    if claim is not None:
        raise UsageError("--claim is for a plain Job; with --runtime, the runtime has the volumes.")
    return as_list(train_job(request, image, runtime))
