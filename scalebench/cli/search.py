"""``scalebench search``."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli.options import (
    CPU_SHARES,
    FRACTION,
    MARGIN,
    MEMORY_SIZE,
    Count,
    as_run_launcher,
    with_settings,
)
from scalebench.cli.run import virtual_hosts_from
from scalebench.cli.view import emit_for_terminal, emit_json, say, writing
from scalebench.errors import UsageError
from scalebench.launch.submission import LAUNCHERS

if TYPE_CHECKING:
    from scalebench.search.result import SearchResult
    from scalebench.search.run import SearchRequest
    from scalebench.session.storing.finish import Run
    from scalebench.spec import Device, Suite
    from scalebench.spec.world import VirtualHosts


MOST_GPUS = 2**17
"""More ranks than any machine has; a search over them would not end in time."""


@click.command()
@click.option("--gpus", required=True, type=Count(min=2, max=MOST_GPUS), help="Number of ranks.")
@click.option("--workload", help="A transformer, or any other: MODULE:FUNCTION. [gpt]")
@click.option("--batch-size", type=Count(min=1), help="Global batch. [the workload's]")
@click.option("--memory-limit", type=MEMORY_SIZE, help="Memory of a rank: 80GB. [the GPU type's]")
@click.option("--margin", type=MARGIN, help="Memory left free. [learnt; with --gpu-type 0.1]")
@click.option("--gpu-type", metavar="NAME", help="A device that is not here: a100, h100, …")
@click.option(
    "--mfu", type=FRACTION, help="Part of its published peak that a rank reaches, e.g. 0.45."
)
@click.option(
    "--measured",
    metavar="FILE|RUN",
    help="With --gpu-type: rows of your cluster to fit to, a CSV file or a run, or a GPU's trace; "
    "what imported logs do not say stands behind it: RUN:tensor=2,zero=1.",
)
@click.option(
    "--options", metavar="NAME=VALUE,…", help="Of your framework: launch=compiled,attention=flash."
)
@click.option(
    "--link",
    metavar="NAME[+NAME]|RATE",
    help="Nominal links inside and between nodes: nvlink4+infiniband-ndr; or, with --launcher "
    "lab, the rate of the virtual hosts' links.",
)
@click.option("--links", metavar="FILE|NAME", help="A link profile, or a topology: dgx-h100.")
@click.option("--ranks-per-node", type=Count(min=1), default=8, help="With --link A+B. [8]")
@click.option("--run", "run_folder", type=click.Path(path_type=Path), help="Start from this run.")
@click.option("--launcher", **as_run_launcher)
@click.option("--cpus-per-rank", type=CPU_SHARES, help="Share of a core of each rank, e.g. 0.2.")
@click.option("--measure", type=Count(min=1), help="Train so many of the best here.")
@click.option("--suite", "suite_file", type=click.Path(path_type=Path), help="Write the best here.")
@click.option("--html", "page", type=click.Path(path_type=Path), help="Write a page to this file.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def search(*, as_json: bool, suite_file: Path | None, page: Path | None, **flags: Any) -> None:
    """Find the mesh, schedule and batch cut that should train a model fastest on N ranks.

    Searches every way to divide the model, discards what does not fit in memory, and predicts the
    rest from one measurement here, or from published peaks with --gpu-type. --measure proves it.
    """
    from scalebench.report.search import render_search

    for option, target in (("--suite", suite_file), ("--html", page)):
        if target is not None and not target.parent.is_dir():
            raise UsageError(
                f"{option} {target}: there is no folder {target.parent}. Create it, or give "
                "another path."
            )
    result = _searched(flags)
    if suite_file is not None:
        from scalebench.session.search import write_suite

        for left_out in write_suite(suite_file, result):
            say(f"scalebench: {left_out}")
        say(f"Suite   {suite_file}")
    if page is not None:
        from scalebench.report.page.other_pages import render_search_page

        with writing("page", page):
            page.write_text(render_search_page(result), encoding="utf-8")
        say(f"Page    {page}")
    if as_json:
        emit_json(result)
    else:
        emit_for_terminal(lambda screen: render_search(result, screen))


def _searched(flags: dict[str, Any]) -> "SearchResult":
    from scalebench.cli.progress import parts_on
    from scalebench.search.calibration import calibration_suite
    from scalebench.search.run import carry_out

    for name in ("measure", "run_folder", "launcher"):
        if flags[name] is not None and flags["gpu_type"] is not None:
            raise UsageError(
                f"--{name.removesuffix('_folder')} is for this machine, and --gpu-type names a "
                "device that is not here. Leave out one of them."
            )
    hosts, request = _request(flags)
    flags["hosts"] = hosts
    ranks = _ranks_here(flags)
    with parts_on(sys.stderr) as on_progress:

        def calibrate(model: Any, batch: int) -> Path:
            say(
                f"scalebench: no run here has measured {model.name} on one rank; measuring it now, "
                f"and links of {ranks} ranks."
            )
            suite = calibration_suite(model, batch, ranks)
            return _run(flags, suite, (1, ranks)).paths.root

        device = _device(flags)
        result = carry_out(request, calibrate, device, on_progress)
    return _measured(flags, result) if flags["measure"] is not None else result


def _request(flags: dict[str, Any]) -> "tuple[VirtualHosts | None, SearchRequest]":
    from scalebench.search.run import SearchRequest

    in_lab = flags["launcher"] == "lab"
    hosts = None
    if in_lab:
        from scalebench.spec.world import parse_rate

        rate = None if flags["link"] is None else (parse_rate(flags["link"]),)
        rest = dict.fromkeys(("ranks_per_host", "link_inter", "hosts_per_rack"))
        hosts = virtual_hosts_from({**rest, **flags, "link": rate})
    elif flags["cpus_per_rank"] is not None:
        raise UsageError("--cpus-per-rank is for virtual hosts: add --launcher lab.")
    measured, columns = with_settings(flags["measured"] or "")
    return hosts, SearchRequest(
        world_size=flags["gpus"],
        workload=flags["workload"],
        batch_size=flags["batch_size"],
        memory_limit_bytes=flags["memory_limit"],
        gpu_type=flags["gpu_type"],
        mfu=flags["mfu"],
        links=flags["links"],
        link=None if in_lab else flags["link"],
        ranks_per_node=flags["ranks_per_node"],
        margin=flags["margin"],
        hosts=hosts,
        run=flags["run_folder"],
        measured=measured if flags["measured"] else None,
        columns=columns,
        options=flags["options"],
    )


def _device(flags: dict[str, Any]) -> "Device":
    """Return on what the ranks here run: virtual hosts have CPU ranks."""
    from scalebench.session.search import device_here

    return "cpu" if flags["hosts"] is not None or flags["gpu_type"] else device_here()


def _ranks_here(flags: dict[str, Any]) -> int:
    """Return how many ranks a measurement here has: as many as are asked for, or there can be."""
    from scalebench import machine

    cores = machine.num_cores()
    hosts: VirtualHosts | None = flags["hosts"]
    most = cores if hosts is None else hosts.capacity(cores) or cores
    return max(2, min(int(flags["gpus"]), 1 << (most.bit_length() - 1)))


def _run(flags: dict[str, Any], suite: "Suite", sizes: tuple[int, ...]) -> "Run":
    """Run a suite here and return the run."""
    from scalebench.cli.progress import progress_on
    from scalebench.session.plan import Request
    from scalebench.session.session import Interrupted, Session

    request = Request(world_sizes=sizes, virtual_hosts=flags["hosts"], quick=True)
    launcher = None if flags["launcher"] is None else LAUNCHERS[flags["launcher"]].start()
    with ExitStack() as stack:
        progress = stack.enter_context(progress_on(sys.stderr))
        session = stack.enter_context(Session(progress, launcher))
        try:
            return session.run(request, [suite], ["scalebench", *sys.argv[1:]])
        except Interrupted as interruption:
            say(f"scalebench: {interruption}")
            # What interrupted it decides the exit code: click knows Ctrl-C, main the rest.
            raise (interruption.__context__ or KeyboardInterrupt()) from None


def _measured(flags: dict[str, Any], result: "SearchResult") -> "SearchResult":
    from scalebench.session.search import STEPS, experiment, picked, suite_of

    ranks = _ranks_here(flags)
    if ranks < result.world_size:
        raise UsageError(
            f"--measure trains on this machine, which has room for {ranks} ranks. Give --gpus "
            f"{ranks}, or virtual hosts: --launcher lab --link 50mbit --cpus-per-rank 0.2."
        )
    chosen = picked(result, flags["measure"])
    suite = suite_of(result, [one for _, one in chosen], STEPS)
    run = _run(flags, suite, (1, result.world_size))
    return result.model_copy(update={"measured": experiment(result, chosen, run)})
