"""The Python door: `scalebench.run` measures suites, ``watch()`` this process's training.

Every rank of the process group has to enter and leave the block. Rank 0 stores a run as
``scalebench run`` does.
"""

import sys
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from scalebench import __version__, machine
from scalebench.errors import UsageError, unknown_name
from scalebench.records.measured.rank import RankRecord
from scalebench.records.run import CellResult, RunInfo, RunSpec
from scalebench.records.summary import Summary
from scalebench.session.cell_runner import ProgressListener
from scalebench.session.machine.gpu_locks import begin_in, run_id_of
from scalebench.session.plan import Request
from scalebench.session.plan.cases import option_of
from scalebench.session.session import Session
from scalebench.session.storing.anonymise import Cleaner
from scalebench.session.storing.finish import Run, RunStore, finish
from scalebench.session.suites import CASE, load_suites
from scalebench.spec import Case, Cell, Device, Script, StepPlan, Suite
from scalebench.spec.script import SIZES, ScriptTarget, as_name, evaluate

if TYPE_CHECKING:
    from scalebench.worker.script.supervise import InProcess

_SWITCHES: dict[tuple[str, object], list[str]] = {
    ("autocast", True): ["--dtype", "bfloat16"],
    ("autocast", False): ["--dtype", "float32"],
    ("autocast", "float16"): ["--dtype", "float16"],
    ("compile", False): ["--no-compile"],
    ("shared", False): ["--isolated"],
    ("pinned", False): ["--unpinned"],
    ("trace", False): ["--no-trace"],
}
_NO_OPTION = ("threads", "notices", "virtual_hosts")
NOT_BEGUN = "the block of scalebench.watch() has not ended yet"


def command_of(suites: Sequence[Suite | str], request: Request) -> list[str]:
    """Return the words that repeat a call of `scalebench.run`.

    A suite that is a Python object has no name that ``scalebench run`` knows: only the program
    that made it does so again.
    """
    if any(isinstance(suite, Suite) for suite in suites):
        return ["python", *sys.orig_argv[1:]]
    words = ["scalebench", "run", *map(str, suites)]
    for field in fields(Request):
        value = getattr(request, field.name)
        if value != field.default and field.name not in _NO_OPTION:
            words += _option(field.name, value)
    return words


def _option(name: str, value: object) -> list[str]:
    if (name, value) in _SWITCHES:
        return _SWITCHES[name, value]
    option = option_of(name)
    if isinstance(value, bool):
        return [option]
    if name == "only" and isinstance(value, tuple):
        return [word for row in value for word in (option, row)]
    return [option, ",".join(map(str, value)) if isinstance(value, tuple) else str(value)]


def run(
    suites: Suite | str | Sequence[Suite | str] = (),
    world_sizes: Sequence[int] | None = None,
    *,
    script: Sequence[str] | None = None,
    samples_per_step: str | int | None = None,
    out: Path | str | None = None,
    request: Request | None = None,
    **options: Any,
) -> Run:
    """Measure suites, or your own script, at the given numbers of ranks and return the run.

    Args:
        suites: Suites, or names or paths of suites; none: the core suites.
        world_sizes: Numbers of ranks; None: 1, 2, 4, … up to the devices.
        script: In place of suites: the words of your own script, ``["train.py", "--lr", "0.1"]``.
        samples_per_step: Of the script, for the whole job, as ``--samples-per-step``.
        out: The run folder; None: a new one below ``reports/``.
        request: Everything else that the command line can say, as one object.
        options: The same by name: ``batch_size=32``, ``steps=20``, ``workload="gpt"``; see
            `scalebench.Request`.

    Raises:
        UsageError: The request cannot be met as it stands.
        EnvironmentUnfit: This machine cannot meet it.
    """
    wanted = _with_options(request or Request(), options)
    if world_sizes is not None:
        wanted = _with_sizes(wanted, world_sizes)
    given: Sequence[Suite | str] = [suites] if isinstance(suites, Suite | str) else list(suites)
    if script is not None:
        loaded, wanted = _of_script(script, given, samples_per_step, wanted)
        given = loaded
    else:
        loaded = [s for one in given for s in ([one] if isinstance(one, Suite) else _named(one))]
    folder = None if out is None else Path(out)
    with Session(ProgressListener()) as session:
        return session.run(wanted, loaded or load_suites(()), command_of(given, wanted), folder)


def _with_options(request: Request, options: dict[str, Any]) -> Request:
    names = [field.name for field in fields(Request)]
    for name in options:
        if name not in names:
            raise unknown_name("option of scalebench.run()", name, names)
    return replace(request, **options)


def _of_script(
    words: Sequence[str], suites: Sequence[Any], samples: str | int | None, request: Request
) -> tuple[list[Suite], Request]:
    """Return the suite of a script, and the request without what the suite has."""
    from scalebench.session.suites import script_suite

    flags = {
        **{field.name: getattr(request, field.name) for field in fields(Request)},
        **{"suites": suites, "python": None, "to_the_end": False},
        "samples_per_step": None if samples is None else str(samples),
    }
    return [script_suite(list(words), flags)], replace(request, scaling=None)


def _named(name: str) -> list[Suite]:
    return load_suites([name])


def _with_sizes(request: Request, world_sizes: Sequence[int]) -> Request:
    sizes = tuple(world_sizes)
    if not sizes or any(not isinstance(n, int) or n < 1 for n in sizes):
        raise UsageError(f"world_sizes={list(sizes)}: give whole numbers of at least 1.")
    return replace(request, world_sizes=sizes)


class Watched:
    """A block of training that is measured; see `watch`.

    Attributes:
        record: This rank's record, after the block; None: there is none.
        run: On rank 0, the stored run; None elsewhere.
    """

    def __init__(
        self, target: ScriptTarget, steps: StepPlan, device: Device | None, out: Path | None
    ) -> None:
        self.target = target
        self.steps = steps
        self.device = device
        self.out = out
        self.record: RankRecord | None = None
        self.run: Run | None = None
        self._started = datetime.now(UTC)
        self._watching: InProcess | None = None

    @property
    def summary(self) -> Summary | None:
        """The summary of the run, on rank 0."""
        return self.run.summary if self.run is not None else None

    def __str__(self) -> str:
        """The table of the run."""
        return NOT_BEGUN if self.run is None else str(self.run)

    def __repr__(self) -> str:
        return f"<Watched: {NOT_BEGUN if self.run is None else repr(self.run)}>"

    def _repr_html_(self) -> str:
        return NOT_BEGUN if self.run is None else self.run._repr_html_()

    def __enter__(self) -> Self:
        from scalebench.worker.script import supervise

        self._started = datetime.now(UTC)
        _, size = supervise.rank_and_size()
        cell = self._cell(size, self.device or supervise.device_here(), supervise.num_threads())
        self._watching = supervise.InProcess(cell)
        self._watching.begin()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        watching = self._watching
        assert watching is not None
        watching.end()
        if error is not None:  # the other ranks may not come any more
            return
        self.record, records = watching.records()
        if records:
            self.run = self._store(watching.cell, records)

    def _cell(self, world_size: int, device: Device, threads: int) -> Cell:
        return Cell(
            suite=self.target.name,
            case=CASE,
            strategy=Script(),
            workload=self.target,
            scaling="weak",
            world_size=world_size,
            global_batch=world_size,
            rank_batch=1,
            device=device,
            backend=None,
            threads=threads,
            pinned=False,
            purpose="measure",
            steps=self.steps,
        )

    def _store(self, cell: Cell, records: list[RankRecord]) -> Run:
        """Store a run of one launch, as `scalebench.session.session` does of several."""
        from scalebench.worker.script.supervise import survey_here

        suite = Suite(
            name=self.target.name,
            question="How long are the steps, and what are they made of?",
            cases=(Case(name=CASE, strategy=Script()),),
            workload=self.target.name,
            scaling="weak",
            script=self.target,
        )
        spec = RunSpec(
            suites=(suite,),
            world_sizes=(cell.world_size,),
            device=cell.device,
            scaling="weak",
            launcher="none",
            threads=cell.threads,
            pinned=False,
            steps=self.steps,
            repeats=1,
        )
        run_id = run_id_of(self._started, spec)
        started = self._started.isoformat(timespec="seconds")
        info = RunInfo(
            run_id=run_id,
            version=__version__,
            created=started,
            command=[sys.executable, *sys.argv],
            spec=spec,
            environment=machine.fingerprint(survey_here()) | {"threads": cell.threads},
            plan=[cell],
            notices=["scalebench.watch(): one size, and no efficiency without another"],
            sealed=True,
        )
        result = CellResult(
            cell=cell,
            status="ok",
            started=started,
            wall_s=(datetime.now(UTC) - self._started).total_seconds(),
            ranks=records,
        )
        with begin_in(self.out, run_id) as paths:
            store = RunStore.create(paths, info, None, Cleaner(command=info.command))
            store.keep_result(result)
            return finish(store.as_stored(), "complete")


def watch(
    out: Path | str | None = None,
    *,
    name: str = "watched",
    samples_per_step: str | int | None = None,
    steps: int | None = None,
    trace: bool = True,
    device: Device | None = None,
) -> Watched:
    """Measure the training in a ``with`` block, in the process group that exists already.

    Every rank has to enter and leave the block. The training goes on unhindered: steps are
    measured as those of ``scalebench run -- train.py``, and nothing is ended.

    Args:
        out: The run folder; None: a new one below ``reports/``.
        name: What table and page call it.
        samples_per_step: Samples of the whole job in a step, a number or an expression of
            ``{world_size}``; None: counted.
        steps: Exactly so many clean steps; None: at least one second of them.
        trace: Whether some steps are traced, for the loss budget.
        device: Where it trains; None: on CUDA if this process uses it already.

    Raises:
        UsageError: A setting is not valid; at the end of the block, there were too few steps.
    """
    asked = None if samples_per_step is None else str(samples_per_step)
    if asked is not None:
        evaluate(asked, dict.fromkeys(SIZES, 1))
    if steps is not None and steps < 2:
        raise UsageError(f"steps={steps}: give a whole number of at least 2.")
    target = ScriptTarget(name=as_name(name), program=name, samples_per_step=asked, to_the_end=True)
    plan = StepPlan(steps=steps, trace=trace)
    return Watched(target, plan, device, None if out is None else Path(out))
