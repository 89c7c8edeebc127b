"""From the records of a log to the times of its steps: the rules that logs of the field taught.

1. A line may have the time of its step, the mean since the line before, that of a micro-batch, the
   time since the beginning, or none; where it has none, samples over rate or the clock tell it.
2. Cumulative times are differenced; micro-batches add up to their step.
3. A clock of 1 s or 1 ms tells spans, not single steps: lines are put together until a span is
   a hundred times what the clock can tell.
4. The first steps compile, and what follows at once may be too short (asynchronous dispatch): both
   are left out while they differ from the rest.
5. What takes more than its steps (evaluation, checkpoints) is cut out and counted apart.
6. Clock and printed time are compared always.
"""

import math
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from scalebench.importing.formats import Format
from scalebench.importing.reader import MOST_COMPARED, Log

Floats = NDArray[np.float64]

PAUSE = 3.0
"""A step of so many times the median is none; nor is one of the clock that is twice as long."""
PAUSE_OF_CLOCK = 2.0
LONGER, SHORTER = 1.1, 0.5
"""Of the median: the first steps are left out as long as they are beyond."""
SKIPPED = 5
"""So many times the usual distance of two lines is one of steps that were not done."""
MOST_WARMUP = 10
FEWEST_GROWING = 8
FEW_SECONDS = 5.0
"""Of a bar, whose seconds are whole ones: the rate that it shows is known better."""
SPANS, FINEST = 100, 20
"""A span has to be so many times what its clock tells, and a line is cut into so many at most."""
OF_SOME_STEPS = (
    "a line is printed every {:g} steps, and does not say whether its time is of one of them or of "
    "all: describe it as a format of your own, with kind = step or interval"
)
GROWING = "the printed times grow from line to line: they are since a beginning, not of one step"
SHOWN = "so few lines of a bar tell no differences: the rate that it shows counts"
ONE_OF_SOME = "one micro-batch of {:g} is printed: the others are not known"
ROUNDED = 0.0006
"""So far off a rate of three decimals may be."""
DIFFER = 0.03
"""Clock and printed time that differ by more are stated."""


@dataclass
class Steps:
    """What the steps of a job take.

    Attributes:
        seconds: Of each step or of each stretch of steps, the mean, seconds.
        counts: How many steps each stands for.
        source: ``printed``, ``clock``, ``rate`` or ``total``.
        averaged: They are means of several steps.
        kept: Which records they come from; empty: of none alone.
        warmup: Records left out at the beginning.
        pauses: How many were cut out, and what they took together, seconds.
        why_none: Why there are none; empty: there are.
    """

    seconds: Floats = field(default_factory=lambda: np.empty(0))
    counts: Floats = field(default_factory=lambda: np.empty(0))
    source: str = "printed"
    averaged: bool = False
    kept: NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, bool))
    warmup: int = 0
    pauses: tuple[int, float] = (0, 0.0)
    why_none: str = ""
    notices: list[str] = field(default_factory=list)

    @property
    def mean_s(self) -> float:
        """Seconds of a step in the mean of all that were kept."""
        return self.total_s / float(self.counts.sum())

    @property
    def total_s(self) -> float:
        """Seconds of all that were kept."""
        return float((self.seconds * self.counts).sum())


def steps_of(log: Log, batch: float | None, work: float | None = None) -> Steps:
    """Return the steps of a log.

    ``batch``: samples of a step of the job. ``work``: what a step does in the unit of the printed
    rate. None: not known.
    """
    form, columns = log.format, {n: log.records.column(n) for n in log.records.columns}
    if form.final:
        return Steps(why_none="the log has no steps, only a final line of each rank")
    if "train_runtime" in log.totals and not _tells_steps(columns):
        return _of_total(log)
    at = columns["step"]
    if form.step_in == "samples" and batch is not None and not _are_steps(columns, batch):
        at = at / batch
    counted = form.step_in == "steps" or batch is not None
    if not counted:
        at = np.arange(len(at), dtype=float) * (1.0 if form.step_in == "lines" else np.nan)
    printed = _printed(form, columns, at, log)
    doubted = _doubted(log, at)
    enough = None if printed is None or doubted else MOST_COMPARED
    held = columns["held"] > 0
    by_clock = _by_clock(columns["clock"][:enough], at[:enough], log.records.resolution, held)
    if printed is None or (doubted and _tells_more(by_clock, printed, log)):
        other = by_clock if len(by_clock.seconds) else _by_rate(form, columns, work)
        chosen = other if len(other.seconds) else printed or other
    else:
        chosen = printed
    if not len(chosen.seconds):
        chosen.why_none = chosen.why_none or _why_none(log, at)
    if printed is not None and counted and len(by_clock.seconds) and len(printed.seconds):
        _compare(chosen, printed, by_clock, log.records.resolution)
    return chosen


def _are_steps(columns: dict[str, Floats], batch: float) -> bool:
    """Tell whether what usually counts samples counts steps here, by the printed samples/s."""
    samples, counted = columns["rate"][1:] * np.diff(columns["clock"]), np.diff(columns["step"])
    known = (samples > 0) & (counted > 0)
    each = samples[known] / counted[known]
    return len(each) > 0 and bool(np.median(each) > math.sqrt(batch))


def _tells_steps(columns: dict[str, Floats]) -> bool:
    return any(np.isfinite(columns[name]).sum() > 1 for name in ("time", "speed", "clock"))


def _of_total(log: Log) -> Steps:
    """Return the one step that a total tells: without evaluations, and without any interval."""
    totals = log.totals
    steps = totals.get("steps") or _steps_of_total(log)
    if steps < 1:
        return Steps(why_none="the log has a total of seconds, and not of how many steps")
    evaluation = totals.get("eval_runtime", 0.0)
    number = int(totals.get("num_evals", 0))
    mean = (totals["train_runtime"] - evaluation) / steps
    if mean <= 0:
        return Steps(why_none="evaluations took as long as the whole training")
    return Steps(
        np.array([mean]), np.array([steps]), "total", True, pauses=(number, evaluation),
        notices=["one total over all steps: no interval can be given"],
    )  # fmt: skip


def _steps_of_total(log: Log) -> float:
    """Return of how many steps a total is, by a printed rate of three decimals; 0: not known."""
    runtime, rate = (log.totals.get(f"train_{n}", 0.0) for n in ("runtime", "steps_per_second"))
    for said in (log.records.last_total, log.facts.number("total_steps")):
        if said and abs(said - runtime * rate) <= ROUNDED * runtime:
            return float(said)
    return runtime * rate if rate > 100 * ROUNDED else 0.0


def _doubted(log: Log, at: Floats) -> bool:
    of_window = log.format.time is not None and log.format.time.kind == "window"
    return of_window or (log.records.unsaid and _stride(at) > 1)


def _tells_more(clock: Steps, printed: Steps, log: Log) -> bool:
    """Tell whether a clock's steps differ from what is printed by more than it may err."""
    if log.records.unsaid or not len(clock.seconds) or not len(printed.seconds):
        return bool(len(clock.seconds))
    beyond = abs(clock.mean_s - printed.mean_s) * float(clock.counts.sum())
    return beyond > 2 * log.records.resolution


def _printed(form: Format, columns: dict[str, Floats], at: Floats, log: Log) -> Steps | None:
    """Return the steps as the log prints them; None: it prints no times."""
    time, speed = columns["time"], columns["speed"]
    if form.time is not None and form.time.kind == "cumulative":
        found = _since_one_time(form, columns, at)
        shown = form.bar and np.isfinite(speed).any()
        if found.total_s > (FEW_SECONDS if shown else 0):
            return found
        time = np.broadcast_to(np.nan, len(at))
    if (added := _of_micro_batches(form, columns, at)) is not None:
        return added
    if _grows(time, log.records.unsaid):
        log.notices.append(GROWING)
        found = _since_one_time(form, columns, at)
        alone = log.records.unsaid and not np.isfinite((columns["clock"], speed)).any()
        time, log.records.unsaid = np.broadcast_to(np.nan, len(at)), False
        if alone and found.total_s > 0:
            return found
    return _of_lines(form, columns, at, time, log)


def _of_lines(
    form: Format, columns: dict[str, Floats], at: Floats, time: Floats, log: Log
) -> Steps | None:
    """Return the steps by what each line says of its own, a time or a rate; None: neither."""
    speed = columns["speed"]
    if not np.isfinite(time).any():
        time = 1 / np.where(speed > 0, speed, np.nan)
        log.notices += [SHOWN] * (form.bar and bool(np.isfinite(time).any()))
    if not np.isfinite(time).any():
        return None
    clocked = np.isfinite(columns["clock"]).sum() > 1
    if log.records.unsaid and _stride(at) > 1 and not clocked:
        return Steps(why_none=OF_SOME_STEPS.format(_stride(at)))
    if form.time is not None and form.time.kind == "span":
        time = time / np.diff(at, prepend=np.nan)
    averaged = form.time is not None and form.time.kind in ("interval", "span", "window")
    stride = _stride(at) if averaged else 1.0
    ok = np.isfinite(time) & (time > 0) & ~(columns["skipped"] > 0)
    if not ok.any():
        ok = np.isfinite(time) & (time > 0)
    return _cleaned(time, stride, ok, averaged and stride > 1, PAUSE) if ok.any() else None


def _since_one_time(form: Format, columns: dict[str, Floats], at: Floats) -> Steps:
    """Return the steps by printed times that all count since a beginning."""
    resolution = 1.0 if form.bar else 10.0 ** -_decimals(columns["time"])
    found = _by_clock(columns["time"], at, resolution, columns["held"] > 0)
    return replace(found, source="printed")


def _grows(time: Floats, unsaid: bool) -> bool:
    """Tell whether times are most likely those since a beginning, though nothing says so.

    ``unsaid``: they are called time alone, so that more lines that grow are enough.
    """
    known = time[np.isfinite(time)]
    if len(known) < FEWEST_GROWING or not np.all(np.diff(known) > 0):
        return False
    return bool(known[-1] > 2 * known[0]) or (unsaid and len(known) >= 2 * FEWEST_GROWING)


def _decimals(time: Floats) -> int:
    known = time[np.isfinite(time)][:1000]
    return next((d for d in range(7) if np.allclose(known, np.round(known, d), atol=1e-9)), 6)


def _stride(at: Floats) -> float:
    """Return how many steps lie between two lines, mostly."""
    gaps = np.diff(at[:MOST_COMPARED])
    gaps = gaps[gaps > 0]
    return float(np.median(gaps)) if len(gaps) else 1.0


def _micro_batches_of_a_step(micro: Floats, printed: Floats, at: Floats) -> float:
    """Return how many lie between two steps, mostly: lines of one step are one record already.

    Not between the first two, as a first step may be shown in part. nan: no two others are known.
    Where their numbers begin again with each step, those that are printed are all.
    """
    if len(micro) > 1 and np.all(micro == micro[0]):
        return float(np.nanmedian(printed))
    each = np.diff(micro[1:MOST_COMPARED]) / np.maximum(np.diff(at[1:MOST_COMPARED]), 1)
    each = each[each > 0]
    return round(float(np.median(each))) if len(each) else math.nan


def _of_whole_steps(time: Floats, printed: Floats, each: float) -> Steps:
    """Return steps of which every micro-batch is printed; the first and last may be in parts."""
    usual = float(np.nanmedian(printed))
    if usual < each:
        return Steps(why_none=ONE_OF_SOME.format(each / usual))
    if not np.any(np.isfinite(time)):
        return Steps(why_none="some micro-batches of each step are not printed")
    return _cleaned(time, 1.0, np.isfinite(time) & (printed == each), False, PAUSE)


def _of_micro_batches(form: Format, columns: dict[str, Floats], at: Floats) -> Steps | None:
    """Return steps whose micro-batches are added up; None: a line is of a whole step."""
    time, stride = columns["time"], _stride(at)
    each = _micro_batches_of_a_step(columns["micro"], columns["micros"], at)
    if math.isnan(each) and np.any(columns["micros"] > 1):
        return Steps(why_none="the micro-batches of a step are not known from so few steps")
    if each > 1:
        return _of_whole_steps(time, columns["micros"], each)
    if form.time is None or form.time.kind != "micro":
        return None
    if stride > 1:
        return Steps(why_none=ONE_OF_SOME.format(stride))
    ok = np.where(np.isfinite(time), time, 0.0)
    ends = np.flatnonzero(columns["end"] > 0)
    if len(ends) < 2:
        return Steps(why_none="no line ends a step of micro-batches")
    sums = np.diff(np.concatenate([[0.0], np.cumsum(ok)[ends]]))
    found = _cleaned(sums, 1.0, sums > 0, False, PAUSE)
    found.kept = np.empty(0, bool)
    return found


def _cleaned(
    time: Floats, each: float, ok: NDArray[np.bool_], averaged: bool, pause: float
) -> Steps:
    """Return times, of so many steps each, without pauses and the first ones that differ."""
    kept, values = ok.copy(), time[ok]
    warmup = warmup_of(values)
    for _ in range(warmup):
        kept[kept.argmax()] = False
    values = values[warmup:]
    typical = float(np.median(values))
    long = values > pause * typical
    paused = float((values[long] - typical).sum())
    kept[kept] = ~long
    values, number = values[~long], int(long.sum())
    counts = np.broadcast_to(np.float64(each), len(values))
    return Steps(values, counts, "printed", averaged, kept, warmup, (number, paused))


def warmup_of(values: Floats) -> int:
    """Return how many of the first values differ from the rest, as those that compile do."""
    most = min(MOST_WARMUP, len(values) // 2)
    typical = float(np.median(values))
    number = 0
    while number < most and not SHORTER * typical <= values[number] <= LONGER * typical:
        low, high = np.quantile(values[number + 1 :], (0.1, 0.9))
        if low <= values[number] <= high:  # steps differ as much all the time
            break
        number += 1
    return number


def _by_clock(
    clock: Floats, at: Floats, resolution: float, held: NDArray[np.bool_], cut: bool = True
) -> Steps:
    """Return steps by a clock: spans without pauses, each long enough for what the clock tells.

    ``held``: an evaluation stands before a line; ``cut``: what it is before is a pause, if most are
    none.
    """
    known = np.flatnonzero(np.isfinite(clock))
    if len(known) < 2:
        return Steps(source="clock")
    seconds, steps = np.diff(clock[known]), np.diff(at[known])
    midnight = (seconds < -80000) & (seconds > -86400)
    seconds = np.where(midnight, seconds + 86400, seconds)
    good = (steps > 0) & (seconds >= 0)
    seconds, steps, other = seconds[good], steps[good], held[known[1:]][good]
    if not len(seconds) or seconds.sum() <= 0:
        return Steps(source="clock")
    typical = _typical(seconds, steps, resolution)
    skipped = steps > SKIPPED * np.median(steps)  # a job goes on where another one had ended
    skipped &= seconds < SHORTER * typical * steps - 2 * resolution
    seconds, steps, other = seconds[~skipped], steps[~skipped], other[~skipped]
    pause = seconds > PAUSE_OF_CLOCK * typical * steps + 2 * resolution
    pause |= other & (cut and 2 * other.sum() < len(other))
    beyond = seconds - typical * steps > 2 * resolution
    first = warmup_of(np.where(beyond, seconds / steps, typical))
    pause[:first] = False
    paused = float((seconds - typical * steps)[pause].sum())
    means, counts = _spans(seconds[first:], steps[first:], pause[first:], resolution)
    if cut and not len(means):
        return _by_clock(clock, at, resolution, held, False)
    return Steps(
        means, counts, "clock", bool(np.any(counts > 1)), np.empty(0, bool), first,
        (int(pause.sum()), paused),
    )  # fmt: skip


def _typical(seconds: Floats, steps: Floats, resolution: float) -> float:
    """Return seconds of a step between pauses, roughly: the median over spans long enough."""
    total, done = np.cumsum(seconds), np.cumsum(steps)
    need = 10 * resolution
    size = max(1, int(np.ceil(need / max(float(np.median(seconds)), resolution / 4))))
    size = min(size, max(1, len(seconds) // 5))
    edges = np.arange(0, len(seconds), size)
    spans = np.diff(np.concatenate([[0.0], total[edges[1:] - 1], total[-1:]]))
    counts = np.diff(np.concatenate([[0.0], done[edges[1:] - 1], done[-1:]]))
    return float(np.median(spans / counts))


def _spans(
    seconds: Floats, steps: Floats, pause: NDArray[np.bool_], resolution: float
) -> tuple[Floats, Floats]:
    """Put lines together to spans that the clock can tell; what is left over joins the last one."""
    means: list[float] = []
    counts: list[float] = []
    edges = np.flatnonzero(pause)
    for begin, end in zip([0, *(edges + 1)], [*edges, len(seconds)], strict=True):
        part, done = seconds[begin:end], steps[begin:end]
        if not len(part) or part.sum() <= 0:
            continue
        number = max(1, min(int(part.sum() / (SPANS * resolution)), FINEST * len(part)))
        if part.sum() < SPANS / 5 * resolution and len(edges):
            continue  # too short beside a pause to say anything
        total = np.cumsum(part)
        cuts = np.searchsorted(total, total[-1] * np.arange(1, number + 1) / number - 1e-9)
        cuts = np.unique(np.minimum(cuts, len(part) - 1))
        spans = np.diff(np.concatenate([[0.0], total[cuts]]))
        sizes = np.diff(np.concatenate([[0.0], np.cumsum(done)[cuts]]))
        means += list(spans / sizes)
        counts += list(sizes)
    return np.array(means), np.array(counts)


def _by_rate(form: Format, columns: dict[str, Floats], work: float | None) -> Steps:
    """Return steps by the printed rate."""
    rate, copies = columns["rate"], columns["copies"]
    if form.rate is not None and form.rate.scope == "rank" and len(copies):
        rate = np.where(copies == copies.max(), rate, np.nan)
    if work is None or not np.isfinite(rate).any():
        return Steps(source="rate")
    time = work / np.where(rate > 0, rate, np.nan)
    averaged = form.rate is not None and form.rate.kind != "step"
    found = _cleaned(time, 1.0, np.isfinite(time), averaged, PAUSE)
    found.source = "rate"
    return found


def _why_none(log: Log, at: Floats) -> str:
    if len(at) < 2:
        return "the log has a single step without its time: give --batch-per-gpu and --seq"
    if not np.isfinite(at).any():
        return "the steps are counted in samples: give --batch-per-gpu"
    return "the lines of the steps have neither a time nor a clock"


def _compare(chosen: Steps, printed: Steps, clock: Steps, resolution: float) -> None:
    """Say where the clock and the printed times differ."""
    if clock.total_s < SPANS * resolution:
        return
    ratio = clock.mean_s / printed.mean_s
    if abs(ratio - 1) > DIFFER and math.isfinite(ratio):
        counts = "the clock" if chosen.source == "clock" else "the printed time"
        chosen.notices.append(
            f"the clock says {clock.mean_s:.4g} s a step and the log prints {printed.mean_s:.4g} s "
            f"({100 * (ratio - 1):+.1f} %); {counts} counts"
        )
