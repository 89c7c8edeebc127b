"""From a log to the records of its steps: read once, line by line, in little memory.

Lines that several ranks print of one step become one record. A step number that goes back is a
restart: the part after it counts.
"""

import difflib
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scalebench.errors import UsageError
from scalebench.importing.formats import TIMES, Format, Value
from scalebench.importing.records import Facts, Line, Records, facts_of
from scalebench.importing.templates import (
    SINCE_1970,
    Template,
    chunks,
    clock_in_seconds,
    elapsed,
    opened,
    prefix_of,
)

FACTS_CHARS = 2 << 20
"""So much of a log, and of what stands before a restart, is searched for facts."""
TAIL_CHARS = 1 << 16
MANY_LINES, ONE_IN = 100_000, 10
"""Of a log of more lines, loss, memory and the like are read in one line of ten."""
ONE_IN_QUICK = 50
ENOUGH_LINES = 20
MOST_COMPARED = 200_000
"""Records whose clock is compared with what they print."""


@dataclass
class Log:
    """What was read of a log.

    Attributes:
        records: Of the part that counts.
    """

    path: Path
    format: Format
    records: Records
    facts: Facts
    notices: list[str] = field(default_factory=list)
    totals: dict[str, float] = field(default_factory=dict)


def read_log(path: Path, known: Sequence[Format]) -> Log:
    """Read a log, packed with gzip or not; the first of ``known`` that fits is taken.

    Raises:
        UsageError: It is no such log, or that of two jobs.
    """
    with opened(path) as file:
        return Reader(path, known).read(chunks(file))


class Reader:
    """Reads a log piece by piece."""

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
        self._finals: set[str] = set()
        self._named = False
        self._line = ""

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
        if not len(log.records) and not log.totals:
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
        if self.format is not None and self.format.refuse:
            raise UsageError(
                f"{self.path} has {self.format.about}, which tell no step: {self.format.refuse}."
            )
        if self.format is not None:
            self._scan(self.format, self._whole(self.format, text), unended)

    def log(self) -> Log | None:
        """Return what was read so far; None: no format fits yet."""
        totals = totals_of(self.tail)
        if self.format is None:
            if totals.keys() <= {"timer_rate"}:
                return None
            self.format = Format(name="totals", step=["{step} "])
        facts = facts_of(self.head, self.format.facts)
        if self.facts is not None:
            facts.merge(self.facts)
        # Of several bars the training's is that of the most time.
        records = max(self.bars.items(), key=lambda bar: (bar[1].spent, bar[0]))[1]
        return Log(self.path, self.format, records, facts, self.notices, totals=totals)

    def _whole(self, form: Format, text: str) -> str:
        """Return a text up to its last block, which may go on in the next piece."""
        if not form.block:
            return text
        begin = max((begin for begin, _ in candidates(text, form)), default=len(text))
        self.before = text[begin:]
        return text[:begin]

    def _scan(self, form: Format, text: str, unended: bool) -> None:
        text = form.seen(text)
        end, self.last_end = len(text), 0
        quick = self._quick(form)
        for begin, stop in candidates(text, form) if quick is None else self._left(quick, text):
            line = text[begin:stop]
            whole = form.bar or (form.final and len(line) >= len(self._line) - 1)
            if unended and stop == end and self.taken > 2 and not whole:
                self.notices.append("its last line has no end and is left out")
                break
            if self.taken == 0:
                self._before_first = text[max(0, begin - FACTS_CHARS) : begin]
            self._take(form, line, text, begin)

    def _take(self, form: Format, line: str, text: str, begin: int) -> None:
        found = self._anchor(form, line)
        if found is None or line in self._finals or form.passes_over(line, found.start()):
            return
        groups = found.groupdict()
        step = self.taken if form.step_in == "lines" else _int(groups["step"]) or 0
        step = 0 if form.final else step
        prefix = prefix_of(line[max(0, found.start() - 300) : found.start()])
        if form.final:  # a line is of a rank, behind any prefix
            self._finals.add(line)
            prefix = prefix._replace(who="")
        total = _int(groups.get("last")) or 0
        records = self.bars.setdefault(total, Records()) if form.bar else self.bars[0]
        records.last_total = total
        since = text[self.last_end if self.taken else begin : begin + len(line)]
        epoch = _int(groups.get("epoch") or form.epoch_in(since))
        at = records.place(step, epoch, _int(groups.get("per_epoch")), form.bar)
        values = self._values(form, line, records)
        if form.bar and "time" in values:
            values["time"] += records.bars_before
        if prefix.clock is not None and "clock" not in values:
            values["clock"] = prefix.clock
            records.resolution = min(records.resolution, prefix.resolution)
        if form.general and not values:
            return
        values |= form.other_work(since[: -len(line)])
        if step == 0 and groups.get("per_epoch") and len(records):
            values["skipped"] = 1.0  # the loader starts: of sampled lines it would count too much
        if records.goes_back(at):
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
        self.last_end, self._line = begin + len(line), line
        records.add(at, Line(values, prefix.who, form.scope_of(records.units), ended))

    def _quick(self, form: Format) -> re.Pattern[str] | None:
        """Return what finds step and time of lines at once; None: lines have to be read in full.

        It is for logs of which many lines were read, so that clocks were compared with printed
        times, and of whose ranks and hosts none has a name.
        """
        if self.taken < MOST_COMPARED or self._named or form.bar or form.block or form.end:
            return None
        if not len(self.bars[0].columns["time"]):
            return None
        if form.step_in == "lines" or "micro" in self._sticky:
            return None
        anchor, time = self._sticky.get(""), self._sticky.get("time")
        own = form.time is not None and form.time.kind in ("step", "interval") and not form.without
        if not own or anchor is None or time is None or self.bars[0].most_copies > 1:
            return None
        pattern = anchor.with_time(time)
        return pattern if pattern and pattern.search(self._line) else None

    def _left(self, quick: re.Pattern[str], text: str) -> Iterator[tuple[int, int]]:
        """Take step and time of lines alone; yield one of 50, and each that is not the next."""
        records, value = self.bars[0], self._sticky["time"].value
        epochs = [n for n in ("epoch", "per_epoch") if n in quick.groupindex]
        for found in quick.finditer(text):
            step, time, suffix = found.group("step", "value", "suffix")
            self.taken += 1
            if self.taken % ONE_IN_QUICK:
                at = float(_int(step) or 0)
                if epochs:
                    counts = {n: _int(found[n]) for n in epochs}
                    at = records.place(at, counts.get("epoch"), counts.get("per_epoch"), False)
                if records.append(at, value(time, suffix)):
                    continue
            self.taken -= 1  # it is counted when it is read
            stop = text.find("\n", found.end())
            yield text.rfind("\n", 0, found.start()) + 1, len(text) if stop < 0 else stop

    def _anchor(self, form: Format, line: str) -> re.Match[str] | None:
        sticky = None if form.bar else self._sticky.get("")  # some bars have an epoch, some none
        if sticky is not None and (found := sticky.search(line)):
            return found
        for anchor in form.anchors:
            if found := anchor.search(line):
                self._sticky[""] = anchor
                return found
        return None

    def _values(self, form: Format, line: str, records: Records) -> dict[str, float]:
        values: dict[str, float] = {}
        brief = self.taken > MANY_LINES and (self.taken + 1) % ONE_IN
        for name, value in (form.times if brief else form.values).items():
            sticky = self._sticky.get(name)
            number = None if sticky is None else sticky.find(line)
            if number is None:
                number = self._search(name, value, line, records)
            if number is not None:
                values[name] = number
        if values.get("time", 0.0) > SINCE_1970:
            values["clock"] = clock_in_seconds(values.pop("time"))
        if "clock" in values and records.units.get("clock") != "elapsed":
            records.resolution = min(records.resolution, 1e-3)
        if "micro" in values:
            values["micros"] = 1.0
        return values

    def _search(self, name: str, value: Value, line: str, records: Records) -> float | None:
        """Return a value by the first template that fits, which is tried first from now on."""
        one, number = next(value.found_in(line), (None, None))
        if one is not None:
            self._sticky[name] = one
            records.units[name] = one.unit
            records.unsaid = records.unsaid or one.unsaid
        return number

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
        fresh.units, fresh.unsaid = dict(old.units), old.unsaid
        fresh.place(step, None, None, form.bar)
        for total, records in self.bars.items():
            if records is old:
                self.bars[total] = fresh
        return fresh


def _int(text: str | None) -> int | None:
    if text is None or not text.endswith("k"):
        return None if text is None else int(text.replace(",", ""))
    return round(1e3 * float(text[:-1]))


def candidates(text: str, form: Format) -> Iterator[tuple[int, int]]:
    """Yield where lines begin and end that may be of steps; of blocks, all of their lines."""
    words = form.words
    places = _lines_of_word(text, words[0]) if len(words) == 1 else _lines_of(text, words)
    if not form.block:
        yield from places
        return
    begins = [
        begin for begin, end in places if any(a.search(text[begin:end]) for a in form.anchors)
    ]
    yield from itertools.pairwise([*begins, len(text)])


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


def choose(whole: str, known: Sequence[Format], lines: int) -> Format | None:
    """Return the first format of which a text has a line of a step with a time or a clock.

    A general format has to have so many ``lines``.
    """
    for form in known:
        if not any(word in whole for word in form.words):
            continue
        text = form.seen(whole)
        seen, left = 0, lines if form.general else 1
        for begin, end in candidates(text, form):
            line = text[begin:end]
            found = next((m for a in form.anchors if (m := a.search(line))), None)
            if form.evaluation or (found and form.passes_over(line, found.start())):
                continue
            if found and (form.refuse or _tells_time(form, line, found.start())):
                left -= 1
            if not left:
                return form
            seen += 1
            if seen > ENOUGH_LINES * 50:
                break
    return None


def _tells_time(form: Format, line: str, start: int) -> bool:
    said = {
        name for name, value in form.values.items() if next(value.found_in(line), None) is not None
    }
    if not said.isdisjoint(TIMES):
        return True
    return (not form.general or "loss" in said) and prefix_of(line[:start]).clock is not None


def totals_of(text: str) -> dict[str, float]:
    """Return what is said at the end of a training, and by DeepSpeed's timer of its rate."""
    name = r"\b(train(?:_\w+|ing_sequences)_per_second|train_runtime|total images/sec)"
    number = r"[\u2019'\"]?\s*[:=]\s*[\u2018'\"]?(\d[\d.:]*)"
    found = {
        key: elapsed(value) if ":" in value else float(value)
        for key, value in re.findall(name + number, text)
    }
    if done := re.findall(r"TrainOutput\(global_step=(\d+)", text):
        found["steps"] = float(done[-1])
    if timer := re.findall(r"RunningAvgSamplesPerSec=([\d.]+)", text):
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
