"""Sessions whose launcher starts no process, and the options of ``run`` where none is given."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from scalebench.launch.base import Launched, ProbeFailed
from scalebench.records.measured.recovery import RecoveryRecord
from scalebench.session.cell_runner import ProgressListener
from scalebench.session.plan import Request
from scalebench.session.session import Interrupted, Session
from scalebench.spec import Case, Cell, Ddp, Suite
from scalebench.spec.recovery import Recovery
from tests.builders.runs import make_inspection, make_record

NO_FLAGS: dict[str, Any] = dict.fromkeys(
    (
        *("python", "samples_per_step", "scaling", "batch_size", "workload", "dtype", "compile"),
        *("memory_limit", "precision"),
    )
) | {"to_the_end": False, "max_batch": False, "suites": ()}
SURVEY = {"torch": "2.13.0", "devices": [], "strategies": [], "backends": ["gloo"]}
SAVES = Suite(
    name="saves",
    question="?",
    cases=(Case(name="ddp", strategy=Ddp()),),
    workload="mlp-tiny",
    repeats=1,
    recovery=Recovery(methods=("full",), faults=()),
)
ONE = Request(world_sizes=(1,), quick=True)


class Ranks:
    """Stands for a launcher: its ranks save a file, and every launch goes well but those named."""

    name, shares, world = "local", False, None

    def __init__(self, stop_at: str = "", before: Callable[[], None] = lambda: None) -> None:
        self.stop_at, self.before = stop_at, before
        self.saved: list[Path] = []

    def survey(self, rates: bool = False) -> dict[str, Any]:
        self.before()
        return dict(SURVEY)

    def launch(self, cell: Cell, logs: Path) -> Launched:
        if cell.purpose == self.stop_at:
            raise KeyboardInterrupt
        if cell.purpose == "inspect":
            return Launched(make_inspection(cell).ranks, None, None, 0.2)
        if cell.recovery is not None:
            folder = Path(str(cell.recovery.directory))
            folder.mkdir(exist_ok=True)
            (folder / "weights").write_text("1")
            self.saved.append(folder)
        return Launched([make_record(recovery=RecoveryRecord())], None, 0.1, 0.2)

    def probe(self, *_: object) -> None:
        raise ProbeFailed("none here")

    def close(self) -> None:
        pass


def start(out: Path, suite: Suite = SAVES, request: Request = ONE, **ranks: Any) -> None:
    """Start a run; one that is told to stop is interrupted."""
    try:
        with Session(ProgressListener(), Ranks(**ranks)) as session:  # type: ignore[arg-type]
            session.run(request, [suite], ["scalebench"], out)
    except Interrupted:
        assert ranks


def resume(root: Path, *given: Any) -> list[Path]:
    """Go on with a run; return where its ranks saved."""
    ranks = Ranks()
    with Session(ProgressListener(), ranks) as session:  # type: ignore[arg-type]
        session.resume(root, *given)
    return ranks.saved
