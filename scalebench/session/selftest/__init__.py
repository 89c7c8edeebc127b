"""The self-test: known faults are injected from outside, and the instrument has to find them."""

import hashlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from scalebench import __version__
from scalebench.errors import EnvironmentUnfit
from scalebench.launch.base import Launcher, ProbeFailed
from scalebench.machine import identity
from scalebench.records.certificate import Certificate, Form, Line, cannot, checked
from scalebench.session.selftest import full, losses
from scalebench.session.selftest.bench import Bench, Unusable

Experiment = Callable[[Bench], Iterator[Line]]


@dataclass(frozen=True)
class Experiments:
    """Experiments that stand and fall together.

    Attributes:
        name: Of the line that says that it could not be tried.
    """

    name: str
    experiment: Experiment
    quick: bool = True


PARTS = (
    Experiments("timer resolution", full.timer),
    Experiments("results of collectives", full.results),
    Experiments("link rate", losses.rates),
    Experiments("slower link to one host", losses.slower_host),
    Experiments("clock offset across hosts", full.clocks),
    Experiments("losses to known causes", losses.losses),
    Experiments("pipeline bubble", losses.bubbles),
    Experiments("smallest change told from noise", full.same_again),
    Experiments("exposed communication", full.exposure, quick=False),
    Experiments("speedup repeated", full.speedup_again, quick=False),
)


def self_test(
    launcher: Launcher,
    form: Form,
    seed: int,
    environment: dict[str, object],
    on_progress: Callable[[str, Line | None], None],
) -> Certificate:
    """Inject what is known, look for it, and return what came of it.

    The launcher is not closed. ``on_progress`` is called with the part that begins (and None), and
    with each judged line.
    """
    began = time.monotonic()
    created = datetime.now(UTC)
    lines: list[Line] = []
    with Bench(launcher, form, seed) as bench:
        for part in PARTS:
            if form == "quick" and not part.quick:
                continue
            on_progress(part.name, None)
            for line in _lines_of(part, bench):
                lines.append(line)
                on_progress(part.name, line)
    launcher.inject(None)
    digest = hashlib.sha256(repr((seed, lines)).encode()).hexdigest()[:7]
    return Certificate(
        id=f"{created:%Y%m%dT%H%M%SZ}_{form}_{digest}",
        created=created.isoformat(timespec="seconds"),
        version=__version__,
        form=form,
        seed=seed,
        seconds=time.monotonic() - began,
        machine=identity(environment),
        lines=tuple(lines),
    )


def _lines_of(part: Experiments, bench: Bench) -> Iterator[Line]:
    """Yield the judged lines of a part.

    A failure has to show twice: whatever fails is tried once more, with other random choices, and
    what is found then counts. Noise that is not seen in its own launch seldom comes twice.
    """
    lines = _tried(part, bench)
    if any(line.passed is False for line in lines):
        again = {line.name: line for line in _tried(part, bench)}
        lines = [_second(line, again.get(line.name, line)) for line in lines]
    yield from lines


def _second(first: Line, again: Line) -> Line:
    if first.passed is not False:
        return first
    return again.model_copy(update={"detail": f"{again.detail}, second attempt".lstrip(", ")})


def _tried(part: Experiments, bench: Bench) -> list[Line]:
    """Return the judged lines of a part; one that breaks down is a failed line."""
    lines: list[Line] = []
    try:
        lines += map(checked, part.experiment(bench))
    except EnvironmentUnfit as error:
        lines.append(cannot(part.name, str(error)))
    except (Unusable, ProbeFailed) as error:
        lines.append(Line(name=part.name, passed=False, reason=str(error)))
    return lines
