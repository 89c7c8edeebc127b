"""Records of the steps of a job, as lines of a log come: those of several ranks are one record."""

import math
from array import array
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

COLUMNS = {
    **dict.fromkeys(("step", "clock", "time", "micro"), "d"),
    **dict.fromkeys(("rate", "speed", "batch", "step_tokens", "skipped", "mfu", "tflops"), "f"),
    **dict.fromkeys(("micros", "held"), "f"),
    **dict.fromkeys(("copies", "end"), "H"),
}
"""Name → type: little memory for logs of millions of steps."""
NUMBERS = frozenset(tuple(COLUMNS)[1:-2])
OPEN_STEPS = 16
"""Steps of which ranks may still print."""
SAME_BAR_S = 3.0
"""Bars of two ranks show the same step within this."""
MOST_SEEN = 1 << 17
HALF_SECOND = 0.5
"""Bars cut off the fraction of their seconds, half of one on the average."""


class Records:
    """Records of the steps of a job, a column for each value.

    Attributes:
        columns: Name → a number for each record, nan: the line does not say.
        ranks: Numbers of ranks in front of lines.
        resolution: Of the clock, seconds.
        unsaid: Times may be of a step or of all since the line before.
        bars_before: Seconds of the bars of earlier epochs.
        rates_differ: Several lines say the same step of the job, and not the same rate.
    """

    def __init__(self) -> None:
        self.columns: dict[str, array[Any]] = {name: array(kind) for name, kind in COLUMNS.items()}
        self.ranks: set[int] = set()
        self.resolution = 1.0
        self.unsaid = False
        self.rates_differ = False
        self.last_total = 0
        self.loss: list[float] = []
        self.bad_loss = 0
        self.bad_at: float | None = None
        self.memory = 0.0
        self.most_copies = 1
        self.units: dict[str, str] = {}
        self._open: dict[float, Line] = {}
        self._seen: dict[float, float] = {}
        self._clock = -math.inf
        self._newest = -1.0
        self._offset, self._earlier, self._place = 0.0, 0.0, -1.0
        self.bars_before = self._elapsed = 0.0
        self._epoch = -1.0

    @property
    def spent(self) -> float:
        """Seconds that a bar was shown, over all epochs."""
        return self.bars_before + self._elapsed

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
        if epoch is not None and epoch < self._epoch:  # a rank lags behind, or a restart
            return self._earlier + step
        starts = epoch is not None and epoch > self._epoch
        if bar:
            ended = self._place == self.last_total
            starts = (starts and ended) or (step < self._place - OPEN_STEPS and step <= 2)
        if starts and self._place >= 0 and step <= self._place:
            self._earlier = self._offset
            self._offset += self._place + (step == 0 and not bar)
            self.bars_before = self._elapsed + HALF_SECOND * (self.units.get("time") == "elapsed")
        if epoch is not None:
            self._epoch = max(epoch, self._epoch)
        self._place = step if bar or starts else max(step, self._place)
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
        self._elapsed = line.values.get("time", 0.0)
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

    def append(self, step: float, time: float) -> bool:
        """Add the next step, of one line, that says its time alone; False: it is not the next."""
        if step <= self._newest:
            return False
        if self._open:
            self.close()
        columns = self.columns
        times, number = columns["time"], len(columns["step"])
        if len(times) < number:
            times.extend([math.nan] * (number - len(times)))
        columns["step"].append(step)
        times.append(time)
        columns["copies"].append(1)
        columns["end"].append(1)
        self._newest = step
        return True

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
        self.most_copies = max(self.most_copies, line.copies)
        columns["end"].append(line.end)
        loss = values.get("loss")
        if loss is not None and math.isfinite(loss):
            self.loss = [self.loss[0] if self.loss else loss, loss]
            self.bad_at = None
        elif loss is not None:
            self.bad_loss += 1
            self.bad_at = step if self.bad_at is None else self.bad_at
        self.memory = max(self.memory, values.get("memory", 0.0))
        self.rates_differ = self.rates_differ or (line.scope == "job" and line.rates > 1)


@dataclass(slots=True)
class Line:
    """What lines say of one step: of the slowest rank, and of the ranks' rates the sum or mean.

    Attributes:
        values: Name → number, in SI units.
        who: Rank or host that printed it; empty: it is not said.
        scope: Whose its rate is: those of ranks add up, of those of GPUs the mean counts.
        end: It ends a step of micro-batches.
        copies: Lines that say the same step.
        rates: How many of them say another rate, or that of a GPU.
    """

    values: dict[str, float]
    who: str
    scope: str
    end: bool
    copies: int = 1
    rates: int = 1
    whos: set[str] | None = None

    def merge(self, other: "Line") -> None:
        """Add what another line says of the same step."""
        micros = self.values.get("micros", 0.0)
        skipped = other.values.get("micro", -1.0) - self.values.get("micro", 0.0) - micros
        if micros and skipped >= 0:
            self.values["micros"] += 1
            missing = math.nan  # where one of them says no time, or is not there, the step has none
            times = (self.values.get("time", missing), other.values.pop("time", missing))
            times = (missing, missing) if skipped else times
            self.values["time"] = sum(times)
        else:
            self.copies += 1
        self.whos = self.whos or {self.who}
        for name, value in other.values.items():
            mine = self.values.get(name)
            if mine is None:
                self.values[name] = value
            elif name == "time":
                self.values[name] = max(mine, value)
            elif name == "rate" and self.scope == "gpu":
                self.rates += 1
                self.values[name] = mine + (value - mine) / self.rates
            elif (
                name == "rate"
                and self.scope == "rank"
                and ("/" not in other.who or other.who not in self.whos)
            ):
                self.values[name] = mine + value
            elif name == "rate":
                self.rates += mine != value
        self.whos.add(other.who)
        self.end = self.end or other.end
