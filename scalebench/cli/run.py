"""``scalebench run``."""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from scalebench.cli import options
from scalebench.cli.help import Grouped, meant_by_option, meant_by_script
from scalebench.cli.options import (
    CPU_SHARES,
    DURATION,
    FRACTION,
    MEMORY_SIZE,
    NAMES,
    POSITIVE,
    RATES,
    WORLD_SIZES,
    Count,
    Name,
    device_option,
    hosts_options,
    option,
    trust_network,
    value_sources,
)
from scalebench.cli.process import launcher_for, place_in_world
from scalebench.cli.view import (
    emit,
    emit_json,
    how_to_go_on,
    print_table,
    print_where_the_rest_is,
    say,
)
from scalebench.errors import ExitCode, UsageError
from scalebench.launch.submission import LAUNCHERS

if TYPE_CHECKING:
    from scalebench.session.plan import Request
    from scalebench.session.storing.finish import Run
    from scalebench.spec import Suite
    from scalebench.spec.script import ScriptTarget
    from scalebench.spec.world import VirtualHosts, WorldMember

NO_LAUNCHER = (
    "srun starts the ranks itself. In an allocation: srun scalebench run …, without --launcher; or "
    "scalebench submit --slurm."
)


class RunCommand(Grouped):
    """A command whose words after ``--`` are a script of the user's, with its own options."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Keep what stands after ``--`` as it is."""
        own, separator, script = _split(args)
        ctx.meta[options.WORDS] = own
        ctx.meta[options.SCRIPT] = tuple(script) if separator else None
        try:
            rest = super().parse_args(ctx, list(own))
        except click.NoSuchOption as error:
            by_script = None if separator else meant_by_script(own, self)
            meant = by_script or meant_by_option(args, self, error.option_name)
            raise meant or error from None
        by_script = None if separator or ctx.resilient_parsing else meant_by_script(own, self)
        if by_script is not None:
            raise by_script
        return rest


def _split(args: list[str]) -> tuple[list[str], bool, list[str]]:
    if "--" not in args:
        return args, False, []
    place = args.index("--")
    return args[:place], True, args[place + 1 :]


@click.command(cls=RunCommand, options_metavar="[OPTIONS]")
@click.argument(
    "suites", nargs=-1, metavar="-- SCRIPT [ARGS] | [SUITE]...", shell_complete=options.suites
)
@option("--gpus", type=WORLD_SIZES, help="Numbers of ranks. Default: 1,2,4,… up to the devices.")
@device_option
@option(
    "--oversubscribe",
    is_flag=True,
    help="Allow more ranks than GPUs; ranks share GPUs and use gloo.",
)
@option(
    "--workload",
    metavar="NAME|MODULE:FUNCTION|hf:FILE",
    shell_complete=options.workloads,
    help="What to train; see scalebench list workloads.",
)
@option(
    "--strategies",
    type=NAMES,
    shell_complete=options.strategies,
    help="Compare these with one another on one workload, e.g. ddp,fsdp,tensor: cases of the "
    "suites, or whole suites.",
)
@option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="bfloat16: autocast; float16: with a scaled loss, too. Default: bfloat16 on CUDA (float16 "
    "where a GPU has none), float32 on CPU.",
)
@option("--compile/--no-compile", default=None, help="torch.compile. Default: on CUDA.")
@option("--scaling", type=click.Choice(["strong", "weak"]), help="Default: strong.")
@option(
    "--batch-size",
    type=Count(min=1),
    help="Samples per step: of the whole job (strong scaling) or of each rank (weak scaling).",
)
@option("--max-batch", is_flag=True, help="Find and measure the largest batch that fits a rank.")
@option(
    "--memory-limit",
    type=MEMORY_SIZE,
    help="Peak memory per rank that --max-batch allows, e.g. 200MB.",
)
@option(
    "--samples-per-step",
    metavar="EXPR",
    help="Of a script: samples of the whole job per step, e.g. {global_batch}*4. Default: counted.",
)
@option("--python", metavar="PATH", help="Of a script: its interpreter. Default: this one.")
@option("--to-the-end", is_flag=True, help="Of a script: let it run on after the measurement.")
@option("--time-limit", type=DURATION, help="End a launch after this much time. Default: 15m.")
@option("--steps", type=Count(min=2), help="Exactly this many measured steps per launch.")
@option(
    "--repeats",
    type=Count(min=1),
    help="Launches (fresh processes) of each case and N. Default: the suite's, mostly 3.",
)
@option(
    "--precision",
    type=FRACTION,
    help="Launch further rounds until every efficiency is known to ± this much, e.g. 2%. "
    "Default on CPU: 3%.",
)
@option(
    "--target-loss",
    type=POSITIVE,
    help="Loss to race to, for a suite that is a race. Default: the plain baseline's half-way.",
)
@option(
    "--budget",
    type=DURATION,
    help="Start no launch after this much time, e.g. 10m. Default for --precision: 90 s a suite.",
)
@option(
    "--checkpoint-dir",
    type=click.Path(path_type=Path),
    help="Where a suite that saves puts its checkpoints. Default: the run folder.",
)
@option(
    "--launcher",
    type=Name(list(LAUNCHERS), {"slurm": NO_LAUNCHER}),
    help="lab: each rank on a virtual host, with --link and --cpus-per-rank. Default: local; under "
    "torchrun, srun or mpirun, the processes they started.",
)
@option(
    "--link",
    "--link-intra",
    "link",
    type=RATES,
    help="Rate of the virtual hosts' links, e.g. 50mbit; or one rate for each host.",
)
@option(
    "--cpus-per-rank",
    type=CPU_SHARES,
    help="Share of a core that each rank may use, e.g. 0.2; one for each rank makes slow ranks: "
    "1,1,0.33.",
)
@trust_network
@hosts_options
@click.option(
    "--link-profile",
    type=click.Path(path_type=Path),
    help="Predict from this file written by calibrate --out; skip calibration.",
)
@click.option("--out", type=click.Path(path_type=Path), help="The run folder itself.")
@click.option("--resume", type=click.Path(path_type=Path), help="Finish an interrupted run.")
@click.option(
    "--changed-script",
    is_flag=True,
    help="Of --resume: go on although the script, or the file of the workload, has changed.",
)
@click.option("--dry-run", is_flag=True, help="Show the plan, memory and time; train nothing.")
@option(
    "--shared/--isolated",
    default=None,
    help="Launch the rows of a suite together and let them take turns, or each by itself. "
    "Default: together on CPU.",
)
@option(
    "--pinned/--unpinned",
    default=None,
    help="Pin each rank to separate processors, CPU ranks in SCHED_BATCH, or leave them where "
    "their launcher puts them. Default: suites pinned, your own script not.",
)
@option("--quick", is_flag=True, help="One short launch of each case and N, without intervals.")
@click.option(
    "-k",
    "selection",
    metavar="EXPR",
    shell_complete=options.cases,
    help="Only cases whose names match.",
)
@click.option(
    "--only", metavar="ROW", multiple=True, help="Only this row, e.g. ddp.ddp.n2 (repeatable)."
)
@option("--keep-going", is_flag=True, help="Try larger sizes even after one ran out of memory.")
@option(
    "--allow-busy", is_flag=True, help="Measure on GPUs even if another scalebench is using them."
)
@option(
    "--anonymise", is_flag=True, help="Do not store host names, user names, addresses or paths."
)
@option(
    "--no-trace",
    is_flag=True,
    help="Do not trace steps: faster, but no cause of lost time is known.",
)
@option(
    "--log-to",
    type=NAMES,
    help="Also log the run to tensorboard, wandb or mlflow, in a folder of the run folder.",
)
@click.option("--no-report", is_flag=True, help="Do not write report.html.")
@click.option(
    "--verbose",
    is_flag=True,
    help="Print also what scalebench show --verbose prints: budgets, predictions, sentences.",
)
@click.option("--json", "as_json", is_flag=True, help="Print summary.json instead of the table.")
@click.option(
    "--show-config", is_flag=True, help="Show where each setting comes from; run nothing."
)
@click.pass_context
def run(context: click.Context, /, **flags: Any) -> None:
    """Train at several numbers of ranks, measure, print the table, write run and report.

    Your own training script stands after -- and needs no change: scalebench run --gpus 1,2 --
    train.py --lr 0.1. Or name a SUITE of scalebench's (or its file); without either, the core
    suites are run. Each option can also be set by an environment variable (SCALEBENCH_GPUS=1,2)
    or in [tool.scalebench] of pyproject.toml.
    """
    if flags["show_config"]:
        for name, value, source in value_sources(context):
            emit(f"{name:<14} {value:<16} {source}")
        return
    flags["script"] = context.meta.get(options.SCRIPT)
    given = flags["out"] is not None or flags["suites"] or flags["strategies"]
    if flags["resume"] is not None and given:
        raise UsageError(
            "--resume continues a run as it was planned: leave out the suite, strategies or "
            "script, and --out."
        )
    from scalebench.analysis.validity import unmeasured_cases
    from scalebench.session.storing.finish import ResultsNotSaved

    if flags["changed_script"] and flags["resume"] is None:
        raise UsageError("--changed-script is for --resume: name the run, or leave it out.")
    _check_max_batch(flags)
    if flags["log_to"]:
        from scalebench.report.export.trackers import check_trackers

        check_trackers(flags["log_to"])
    member = place_in_world(flags)
    if flags["dry_run"]:
        _dry_run(flags, member)
        return
    try:
        measured, exit_code = _measure(flags, member)
    except ResultsNotSaved as error:
        emit_json(error.rest)
        raise
    show_result(measured, flags)
    for name in flags["log_to"] or ():
        from scalebench.report.export.trackers import log_to

        say(f"Logged  {log_to(name, measured.paths.root, measured.summary)}")
    for name in unmeasured_cases(measured.summary.rows):
        say(f"scalebench: Nothing of {name} was measured: every row was skipped, see its reason.")
    context.exit(int(exit_code))


def _check_max_batch(flags: dict[str, Any]) -> None:
    if flags["memory_limit"] is not None and not flags["max_batch"]:
        raise UsageError("--memory-limit is for --max-batch: add it, or leave the limit out.")
    if flags["max_batch"] and flags["dry_run"]:
        raise UsageError(
            "--dry-run trains nothing, and --max-batch finds the largest batch by training. "
            "Leave out one of them."
        )


def wanted(flags: dict[str, Any]) -> "tuple[list[Suite], Request]":
    """Return the suites and the request, checked as far as that goes without the machine."""
    from scalebench.session.plan import check_names

    suites = _suites(flags) if flags["resume"] is None else []
    request = request_from(flags)
    if suites and flags["script"] is None:
        from scalebench.session.suites import about_hidden

        request = replace(request, notices=about_hidden(flags["suites"]))
    check_names(request, suites)
    return suites, request


def _suites(flags: dict[str, Any]) -> "list[Suite]":
    """Return the suites, or the one that the user's script is."""
    if flags["script"] is None:
        from scalebench.session.suites import load_suites

        for name in ("samples_per_step", "python", "to_the_end"):
            if flags[name]:
                raise UsageError(
                    f"--{name.replace('_', '-')} is for your own script: give it after --, for "
                    "example scalebench run --gpus 1,2 -- train.py."
                )
        if flags["strategies"] is None:
            return load_suites(flags["suites"])
        if flags["suites"]:
            raise UsageError(f"Give a suite ({flags['suites'][0]}) or --strategies, not both.")
        from scalebench.session.suites import strategies_suite

        return [strategies_suite(flags["strategies"], flags["workload"])]
    from scalebench.session.suites import script_suite

    return [script_suite(flags["script"], flags)]


def _measure(flags: dict[str, Any], member: "WorldMember | None") -> tuple["Run", ExitCode]:
    from scalebench.cli import code_of
    from scalebench.cli.progress import progress_on
    from scalebench.session.interleaved.run_process import RoundRequests
    from scalebench.session.session import Interrupted, Session

    # The processes of a world wait for word: there, complaints come when they can be told.
    checked = wanted(flags) if member is None else None
    if flags["resume"] and member is None:
        _go_where_started(flags)
    command = ["scalebench", *sys.argv[1:]]
    launcher = launcher_for(flags, member)
    requests = RoundRequests.from_environment()
    with progress_on(sys.stderr) as progress, Session(progress, launcher, requests) as session:
        suites, request = checked or wanted(flags)
        try:
            if flags["resume"]:
                given = {n: flags[n] for n in ("allow_busy", "changed_script", "checkpoint_dir")}
                script = _script_again(flags)
                finished = session.resume(flags["resume"], **given, script=script)
            else:
                finished = session.run(request, suites, command, flags["out"])
        except Interrupted as interruption:
            signal.signal(signal.SIGINT, lambda *_: os._exit(ExitCode.INTERRUPTED))
            return interruption.run, code_of(interruption.__context__)
    return finished, finished.exit_code


def _go_where_started(flags: dict[str, Any]) -> None:
    """Go to the folder in which the script of a run that is resumed was started."""
    from scalebench.session.storing.code import go_where_started

    before = os.getcwd()
    changed, script = flags["changed_script"], _script_again(flags)
    flags["resume"] = go_where_started(flags["resume"], changed, script)
    if os.getcwd() != before:
        say(f"scalebench: {os.getcwd()}: the run goes on where it was started")


def _script_again(flags: dict[str, Any]) -> "ScriptTarget | None":
    """Return the script with which a run is resumed that has not stored all of its command."""
    from scalebench.spec.script import script_from

    words = flags["script"]
    return None if words is None else script_from(words, flags["python"] or sys.executable)


def show_result(measured: "Run", flags: dict[str, Any]) -> None:
    """Render the report and print the table (or JSON), as the flags say."""
    from scalebench.session.storing.finish import render_report

    if flags["no_report"]:
        where = f"Run     {measured.paths.root}"
    else:
        where = f"Report  {render_report([measured.paths.root])}"
    if flags["as_json"]:
        emit_json(measured.summary)
        say(where)
    else:
        print_table(measured.summary, flags["verbose"])
        emit(where)
        if not flags["verbose"]:
            print_where_the_rest_is(str(measured.paths.root))
    if further := how_to_go_on(measured.summary.status, measured.paths.root):
        (say if flags["as_json"] else emit)(further)


AUTOCAST: dict[str, Any] = {"float32": False, "bfloat16": True, "float16": "float16"}


def request_from(flags: dict[str, Any]) -> "Request":
    """Return what the flags ask for."""
    from scalebench.session.plan import Request
    from scalebench.session.plan.cases import option_of

    given = {name: flags[str(p.name)] for p in run.params for name in p.opts}
    names = {field.name: option_of(field.name) for field in fields(Request)}
    values = {field: given[name] for field, name in names.items() if name in given}
    of_script = flags["script"] is not None
    return Request(
        **values
        | {
            "device": None if flags["device"] == "auto" else flags["device"],
            "autocast": AUTOCAST.get(flags["dtype"]),
            "scaling": None if of_script else flags["scaling"],  # its suite has it
            "threads": threads_of_script(flags["script"]) if of_script else None,
            "trace": not flags["no_trace"],
            "virtual_hosts": virtual_hosts_from(flags),
        }
    )


def threads_of_script(words: Sequence[str] = ()) -> int | None:
    """Return ``OMP_NUM_THREADS``: of a script, what the user has set holds. None: not set."""
    from scalebench.spec.script import settings_before

    own = dict(setting.split("=", 1) for setting in settings_before(words)[0])
    given = {**os.environ, **own}.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else None


def virtual_hosts_from(flags: dict[str, Any]) -> "VirtualHosts | None":
    """Return the virtual hosts that the flags ask for, or None.

    Raises:
        UsageError: They contradict one another.
    """
    from scalebench.spec.world import VirtualHosts

    names = ("link", "cpus_per_rank", "ranks_per_host", "link_inter", "hosts_per_rack")
    given = [f"--{name.replace('_', '-')}" for name in names if flags[name] is not None]
    if flags["launcher"] != "lab":
        if given:
            raise UsageError(f"{given[0]} is for virtual hosts: add --launcher lab.")
        return None
    if flags["link"] is None:
        raise UsageError("--launcher lab needs the rate of its links: add --link 50mbit.")
    if (flags["link_inter"] is None) != (flags["hosts_per_rack"] is None):
        raise UsageError(
            "Racks need both the rate between them and their size: give --link-inter 50mbit and "
            "--hosts-per-rack 2, or neither."
        )
    shares: tuple[float, ...] = flags["cpus_per_rank"] or ()
    return VirtualHosts(
        link_bit_per_s=flags["link"],
        cpus_per_rank=shares[0] if len(shares) == 1 else None,
        cpu_shares=shares if len(shares) > 1 else None,
        ranks_per_host=flags["ranks_per_host"] or 1,
        hosts_per_rack=flags["hosts_per_rack"],
        inter_bit_per_s=flags["link_inter"],
    )


def _dry_run(flags: dict[str, Any], member: "WorldMember | None") -> None:
    from scalebench.cli.progress import progress_on
    from scalebench.cli.text_tables import render_plan
    from scalebench.records.paths import default_runs_folder
    from scalebench.session.machine.survey import SurveyedLauncher
    from scalebench.session.plan.max_batch import forecast, seconds_of_a_launch
    from scalebench.session.session import Session

    checked = wanted(flags) if member is None else None
    launcher = launcher_for(flags, member) or SurveyedLauncher()
    with progress_on(sys.stderr) as progress, Session(progress, launcher) as session:
        suites, request = checked or wanted(flags)
        prepared = session.prepare(request, suites)
    launch_s = seconds_of_a_launch(suites, default_runs_folder())
    foreseen = forecast(prepared.plan, prepared.num_parameters, launch_s)
    emit(render_plan(foreseen, prepared.plan))
