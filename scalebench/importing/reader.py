"""From a log to the records of its steps: read once, line by line, in little memory.

Lines that several ranks print of one step become one record. A step number that goes back is a
restart: the part after it counts.
"""

import difflib
import itertools
import math
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.errors import UsageError
from scalebench.importing.facts import Facts, facts_of
from scalebench.importing.formats import Format, Template, Value
from scalebench.importing.lines import Prefix, chunks, opened, prefix_of

COLUMNS = {
    **dict.fromkeys(("step", "clock", "time"), "d"),
    **dict.fromkeys(("rate", "speed", "batch", "step_tokens", "skipped", "mfu", "tflops"), "f"),
    **dict.fromkeys(("copies", "end"), "H"),
}
"""Name → type: little memory for logs of millions of steps."""
NUMBERS = frozenset(tuple(COLUMNS)[1:-2])
OPEN_STEPS = 16
"""Steps of which ranks may still print."""
FACTS_CHARS = 2 << 20
"""So much of a log, and of what stands before a restart, is searched for facts."""
TAIL_CHARS = 1 << 16
MANY_LINES, ONE_IN = 100_000, 10
"""Of a log of more lines, loss, memory and the like are read in one line of ten."""
ENOUGH_LINES = 20
MOST_COMPARED = 200_000
"""Records whose clock is compared with what they print."""
UNREAD = Prefix("", None, None, 1.0)
SAME_BAR_S = 3.0
"""Bars of two ranks show the same step within this."""
MOST_SEEN = 1 << 17


class Records:
    """Records of the steps of a job, a column for each value.

    Attributes:
        columns: Name → a number for each record, nan: the line does not say.
        ranks: Numbers of ranks in front of lines.
        resolution: Of the clock, seconds.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[Any]] = {name: array(kind) for name, kind in COLUMNS.items()}
        self.ranks: set[int] = set()
        self.resolution = 1.0
        self.last_total = 0
        self.loss: list[float] = []
        self.bad_loss = 0
        self.bad_at: float | None = None
        self.memory = 0.0
        self.units: dict[str, str] = {}
        self._open: dict[float, Line] = {}
        self._seen: dict[float, float] = {}
        self._clock = -math.inf
        self._newest = -1.0
        self._offset, self._place = 0.0, -1.0
        self._epoch = -1.0

    def __len__(self) -> int:
        return len(self.columns["step"])

    def column(self, name: str) -> NDArray[Any]:
        """Return a column, nan where a line did not say; in use, no record can be added."""
        column = self.columns[name]
        if not len(column) and column.typecode in "df":  # no line says it: a view of one number
            return np.broadcast_to(np.array(np.nan, column.typecode), len(self))
        missing = len(self) - len(column)
        if missing:
            column.frombytes(np.full(missing, np.nan, column.typecode).tobytes())
        return np.frombuffer(column, dtype=column.typecode)

    def place(self, step: float, epoch: float | None, per_epoch: float | None, bar: bool) -> float:
        """Return the number of a step over all epochs; a smaller one than before: a restart."""
        if epoch is not None and per_epoch is not None:
            return epoch * per_epoch + step
        starts = epoch is not None and epoch > self._epoch
        if bar:
            starts = step < self._place - OPEN_STEPS and step <= 2
        if starts and self._place >= 0 and step <= self._place:
            self._offset += self._place
        if epoch is not None:
            self._epoch = max(epoch, self._epoch)
        self._place = step
        return self._offset + step

    def goes_back(self, step: float) -> bool:
        """Tell whether a step's number is smaller than those that may still be printed."""
        return step < self._newest and step not in self._open

    def is_copy(self, step: float, values: dict[str, float], bar: bool) -> bool:
        """Tell whether another rank's log stands behind this one: its clock goes back as well."""
        if bar:
            known = self._seen.get(step)
            return known is not None and abs(known - values.get("time", -1e9)) <= SAME_BAR_S
        return values.get("clock", math.inf) < self._clock - 1

    def add(self, step: float, line: "Line") -> None:
        """Add what a line says of a step."""
        self._clock = line.values.get("clock", self._clock)
        if len(self._seen) < MOST_SEEN and "time" in line.values:
            self._seen.setdefault(step, line.values["time"])
        known = self._open.get(step)
        if known is None:
            if len(self._open) >= OPEN_STEPS:
                self._close(min(self._open))
            self._open[step] = line
            self._newest = step
        else:
            known.merge(line)

    def close(self) -> None:
        """Note that no line comes any more."""
        for step in sorted(self._open):
            self._close(step)

    def _close(self, step: float) -> None:
        line = self._open.pop(step)
        columns, values = self.columns, line.values
        number = len(columns["step"])
        columns["step"].append(step)
        for name, value in values.items():
            if name in NUMBERS:
                column = columns[name]
                if len(column) < number:  # lines before did not say it
                    column.extend([math.nan] * (number - len(column)))
                column.append(value)
        columns["copies"].append(min(line.copies, 65535))
        columns["end"].append(line.end)
        loss = values.get("loss")
        if loss is not None and math.isfinite(loss):
            self.loss = [self.loss[0] if self.loss else loss, loss]
            self.bad_at = None
        elif loss is not None:
            self.bad_loss += 1
            self.bad_at = step if self.bad_at is None else self.bad_at
        self.memory = max(self.memory, values.get("memory", 0.0))


@dataclass(slots=True)
class Line:
    """What lines say of one step: of the slowest rank, and of the ranks' rates the sum.

    Attributes:
        values: Name → number, in SI units.
        who: Rank or host that printed it; empty: it is not said.
        adds: Rates are of ranks, and add up.
        end: It ends a step of micro-batches.
        copies: Lines that say the same step.
    """

    values: dict[str, float]
    who: str
    adds: bool
    end: bool
    copies: int = 1
    whos: set[str] | None = None

    def merge(self, other: "Line") -> None:
        """Add what another line says of the same step."""
        self.copies += 1
        self.whos = self.whos or {self.who}
        for name, value in other.values.items():
            mine = self.values.get(name)
            if mine is None:
                self.values[name] = value
            elif name == "time":
                self.values[name] = max(mine, value)
            elif name == "rate" and self.adds and (not other.who or other.who not in self.whos):
                self.values[name] = mine + value
        self.whos.add(other.who)
        self.end = self.end or other.end


@dataclass
class Log:
    """What was read of a log.

    Attributes:
        format: How it prints its steps.
        records: Of the part that counts.
        facts: Of its job.
        notices: What a reader has to know.
    """

    path: Path
    format: Format
    records: Records
    facts: Facts
    notices: list[str] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)


def read_log(path: Path, known: Sequence[Format]) -> Log:
    """Read a log.

    Args:
        path: The file, perhaps packed with gzip.
        known: The formats to look for; the first one that fits is taken.

    Raises:
        UsageError: It is no such log, or that of two jobs.
    """
    with opened(path) as file:
        return Reader(path, known).read(chunks(file))


class Reader:
    """Reads a log piece by piece.

    Args:
        path: What it is called.
        known: The formats to look for.
    """

    def __init__(self, path: Path, known: Sequence[Format]) -> None:
        self.path, self.known = path, known
        self.format: Format | None = None
        self.head = self.tail = ""
        self.bars: dict[int, Records] = {0: Records()}
        self.facts: Facts | None = None
        self.notices: list[str] = []
        self.before = ""
        self.copies = self.taken = 0
        self.last_end = 0
        self._before_first = ""
        self._sticky: dict[str, Template] = {}
        self._named = False

    def read(self, pieces: Iterator[str]) -> Log:
        """Read a log to its end.

        Raises:
            UsageError: No format fits, or it has no step.
        """
        for piece in pieces:
            self.feed(piece)
        self.format = self.format or choose(self.before, self.known, 1)
        if self.format is not None and self.before:
            self._scan(self.format, self.before, False)
        for records in self.bars.values():
            records.close()
        log = self.log()
        if log is None or self.format is None:
            raise _unknown(self.path, self.head, self.known)
        if not len(log.records) and "train_runtime" not in log.totals:
            raise UsageError(
                f"{self.path} has no line of a step as {self.format.name} prints them: "
                f"{self.format.step[0]}"
            )
        return log

    def feed(self, piece: str) -> None:
        """Read some more lines; only the last ones of all may have no end."""
        unended = not piece.endswith("\n")
        if len(self.head) < FACTS_CHARS:
            self.head += piece[:FACTS_CHARS]
        self.tail = (self.tail + piece)[-TAIL_CHARS:]
        text = self.before + piece
        self.before = ""
        if self.format is None:
            self.format = choose(text, self.known, 2)
            self.before = text[-FACTS_CHARS:] if self.format is None else ""
        if self.format is not None:
            self._scan(self.format, self._whole(self.format, text), unended)

    def log(self) -> Log | None:
        """Return what was read so far; None: no format fits yet."""
        totals = totals_of(self.tail)
        if self.format is None:
            if "train_runtime" not in totals:
                return None
            self.format = Format(name="trainer-total", step=["{step} "])
        facts = facts_of(self.head, self.format.facts)
        if self.facts is not None:
            facts.merge(self.facts)
        return Log(self.path, self.format, self._training(), facts, self.notices, totals=totals)

    def _whole(self, form: Format, text: str) -> str:
        """Return a text up to its last block, which may go on in the next piece."""
        if not form.block:
            return text
        begin = max((begin for begin, _ in candidates(text, form)), default=len(text))
        self.before = text[begin:]
        return text[:begin]

    def _training(self) -> Records:
        """Return the records of the training; of several bars that with the most steps."""
        found = max(self.bars.items(), key=lambda bar: (len(bar[1]), bar[0]))
        found[1].last_total = found[0]
        return found[1]

    def _scan(self, form: Format, text: str, unended: bool) -> None:
        end, self.last_end = len(text), 0
        for begin, stop in candidates(text, form):
            line = text[begin:stop]
            if unended and stop == end and not form.bar and self.taken > 2:
                self.notices.append("its last line has no end and is left out")
                break
            if self.taken == 0:
                self._before_first = text[max(0, begin - FACTS_CHARS) : begin]
            self._take(form, line, text, begin)

    def _take(self, form: Format, line: str, text: str, begin: int) -> None:
        found = self._anchor(form, line)
        if found is None or (form.without and any(word in line for word in form.without)):
            return
        groups = found.groupdict()
        step = 0 if form.final else int(groups["step"].replace(",", ""))
        start = found.start()
        before = line[max(0, start - 300) : start]
        prefix = UNREAD if self._needs_no_clock(form) else prefix_of(before)
        total = _int(groups.get("last")) or 0
        records = self.bars.setdefault(total, Records()) if form.bar else self.bars[0]
        at = records.place(step, _int(groups.get("epoch")), _int(groups.get("per_epoch")), form.bar)
        values = self._values(form, line, records)
        goes_back = records.goes_back(at)
        if goes_back and prefix is UNREAD:
            prefix = prefix_of(before)
        if prefix.clock is not None and "clock" not in values:
            values["clock"] = prefix.clock
            records.resolution = min(records.resolution, prefix.resolution)
        if step == 0 and groups.get("per_epoch") and len(records):
            values["skipped"] = 1.0  # the loader starts: of sampled lines it would count too much
        if goes_back:
            if records.is_copy(at, values, form.bar):
                self.copies += 1
                return
            between = text[max(self.last_end, begin - FACTS_CHARS) : begin]
            records = self._restart(form, records, at, between)
        if prefix.rank is not None:
            records.ranks.add(prefix.rank)
        self._named = self._named or bool(prefix.who)
        ended = not form.end or any(word in line for word in form.end)
        self.taken += 1
        self.last_end = begin + len(line)
        adds = form.values["rate"].scope == "rank" if "rate" in form.values else False
        records.add(at, Line(values, prefix.who, adds, ended))

    def _needs_no_clock(self, form: Format) -> bool:
        """Tell whether a line's prefix says nothing: times are printed, and compared already."""
        many = self.taken > MOST_COMPARED and self.taken % ONE_IN
        if not many or self._named or form.time is None or "time" not in self._sticky:
            return False
        return form.time.kind in ("step", "interval", "micro")

    def _anchor(self, form: Format, line: str) -> re.Match[str] | None:
        sticky = self._sticky.get("")
        if sticky is not None and (found := sticky.search(line)):
            return found
        for anchor in form.anchors:
            if found := anchor.search(line):
                self._sticky[""] = anchor
                return found
        return None

    def _values(self, form: Format, line: str, records: Records) -> dict[str, float]:
        values: dict[str, float] = {}
        brief = self.taken > MANY_LINES and self.taken % ONE_IN
        for name, value in (form.times if brief else form.values).items():
            sticky = self._sticky.get(name)
            number = None if sticky is None else sticky.find(line)
            if number is None:
                number = self._search(name, value, line, records)
            if number is not None:
                values[name] = number
        if "clock" in values:
            records.resolution = min(records.resolution, 1e-3)
        return values

    def _search(self, name: str, value: Value, line: str, records: Records) -> float | None:
        """Return a value by the first template that fits, which is tried first from now on."""
        for one in value.templates:
            number = one.find(line)
            if number is not None:
                self._sticky[name] = one
                records.units[name] = one.unit
                return number
        return None

    def _restart(self, form: Format, old: Records, step: float, before: str) -> Records:
        """Begin again where a step number goes back; refuse what is another job's.

        Raises:
            UsageError: What is said before it is of another N or model.
        """
        if self.facts is None:
            self.facts = facts_of(self._before_first, form.facts)
        earlier, here = self.facts, facts_of(before, form.facts)
        for name, value in here.identity.items():
            was = earlier.identity.get(name, value)
            if was != value:
                raise UsageError(
                    f"{self.path} holds two jobs: {name} is {was:g} and then {value:g}. "
                    "Cut it into one file for each."
                )
        old.close()
        earlier.merge(here)
        self.notices.append(
            f"the step number goes back from {old.columns['step'][-1]:.0f} to {step:.0f}: "
            "a restart; only the part after it counts"
        )
        fresh = Records()
        fresh.units = dict(old.units)
        fresh.place(step, None, None, form.bar)
        for total, records in self.bars.items():
            if records is old:
                self.bars[total] = fresh
        return fresh


def _int(text: str | None) -> int | None:
    return None if text is None else int(text.replace(",", ""))


def candidates(text: str, form: Format) -> Iterator[tuple[int, int]]:
    """Yield where lines begin and end that may be of steps; of blocks, all of their lines."""
    words = form.words
    places = _lines_of_word(text, words[0]) if len(words) == 1 else _lines_of(text, words)
    if not form.block:
        yield from places
        return
    begins = [begin for begin, end in places if _is_step(form, text[begin:end])]
    yield from itertools.pairwise([*begins, len(text)])


def _is_step(form: Format, line: str) -> bool:
    return any(anchor.search(line) for anchor in form.anchors)


def _lines_of_word(text: str, word: str) -> Iterator[tuple[int, int]]:
    at = text.find(word)
    while at >= 0:
        end = text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text.rfind("\n", 0, at) + 1, end
        at = text.find(word, end)


def _lines_of(text: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    begin = 0
    for line in text.split("\n"):
        if any(word in line for word in words):
            yield begin, begin + len(line)
        begin += len(line) + 1


def choose(text: str, known: Sequence[Format], lines: int) -> Format | None:
    """Return the first format of which a text has a line of a step with a time or a clock.

    Args:
        text: Lines.
        known: The formats.
        lines: So many lines a general format has to have.
    """
    for form in known:
        if not any(word in text for word in form.words):
            continue
        seen, left = 0, lines if form.general else 1
        for begin, end in candidates(text, form):
            line = text[begin:end]
            if any(word in line for word in form.without) or form.evaluation:
                continue
            found = next((m for a in form.anchors if (m := a.search(line))), None)
            if found is not None and _tells_time(form, line, found.start()):
                left -= 1
            if not left:
                return form
            seen += 1
            if seen > ENOUGH_LINES * 50:
                break
    return None


def _tells_time(form: Format, line: str, start: int) -> bool:
    for name in ("time", "rate", "speed", "clock"):
        value = form.values.get(name)
        if value is not None and any(one.find(line) is not None for one in value.templates):
            return True
    return form.block and prefix_of(line[:start]).clock is not None


def totals_of(text: str) -> dict[str, float]:
    """Return what transformers says at the end of a training, and DeepSpeed's timer of its rate."""
    found = {}
    for name in ("train_runtime", "train_steps_per_second", "train_samples_per_second"):
        match = re.search(rf"['\"]{name}['\"]: ['\"]?([\d.]+)", text)
        if match:
            found[name] = float(match[1])
    timer = re.findall(r"RunningAvgSamplesPerSec=([\d.]+)", text)
    if timer:
        found["timer_rate"] = float(timer[len(timer) // 2])
    return found


def _unknown(path: Path, text: str, known: Sequence[Format]) -> UsageError:
    """Return the error of a log that no format fits, with the nearest three and how to add one."""
    words = {form.name: [*form.words, *(a.literal for a in form.anchors)] for form in known}
    near = sorted(words, key=lambda n: -sum(w in text for w in words[n]) / len(words[n]))[:3]
    example = next((ln for ln in text.split("\n") if re.search(r"\d", ln) and "tep" in ln), "")
    example = example or next((ln for ln in text.split("\n") if re.search(r"\d", ln)), "")
    close = difflib.get_close_matches(path.stem, list(words), 1)
    return UsageError(
        f"{path}: no known format fits (nearest: {', '.join(dict.fromkeys([*close, *near]))}). "
        "Describe its line of a step in scalebench.toml: [formats.mine] / "
        'step = "step {step}" / time = "time {s}" / loss = "loss {}"'
        + (f" for a line as: {example.strip()[:120]}" if example else "")
    )
