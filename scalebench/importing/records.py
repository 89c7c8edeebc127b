"""What a log says of its job and of its steps: those of several ranks are one record.

What a log says of its job besides the steps: N, batch, sequence, model, GPU.

Nothing is guessed: a number counts where the log calls it by a name that means just that, and
always the same one. What only suggests N (the GPUs of one node) is kept separately.
"""

import math
import re
import tomllib
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalebench.importing.templates import NUMBER, Template, template

BETWEEN = r"""["']?\s*(?:=>|[:=]|\.{2,}|,\s*"value":|\s)\s*["']?"""
_SCALES = {"": 1, "K": 1e3, "M": 1e6, "B": 1e9, "billion": 1e9, "million": 1e6, "T": 1e12}
_GPU = re.compile(
    r"(?:(?:NVIDIA|AMD|Tesla|Instinct)\s+)*"
    r"\b(?:[AHVLTP]\d{2,3}|B[23]00|GB[23]00|GH200|MI\d{3}[AX]?|RTX(?: A)? ?\d{4}|TPU v\d\w?)\b"
    r"[-\w]*(?: \d+GB)?(?: HBM3e?| PCIe| SXM\d?)?"
)
_GPU_LINE = re.compile(
    r"GPU \d+[:(]|device name|submission_platform|^\|\s+\d+\s+NVIDIA|Tesla|Device:|GPU type|TPU_"
    r"|Detected GPU|gpu_name|device_name|Accelerator"
)
_SMI_ROW = re.compile(r"^\|\s+(\d+)\s+(?:NVIDIA|Tesla|Quadro|GeForce|AMD|H\d|A\d)", re.MULTILINE)
_MESH = re.compile(r"Building \d-D device mesh with .*?[\])], \[([\d, ]+)\]")
_PER_NODE = re.compile(r"--nproc[_-]per[_-]node[= ](\d+)")
_NODES = re.compile(r"--nnodes[= ](\d+)(?![\d:])")
_VERSION = r"v?(\d+(?:\.\d+)+[-+.\w]*)"
SOFTWARE = {
    "driver": [
        (r"Driver Version", r"[Dd]river [Vv]ersion:?\s+"),
        (r"driver version", r"driver version:?\s+"),
        (r"driver_version", r"driver_version[\"']?\s*[:=]\s*[\"']?"),
        (r"Kernel Module", r"Kernel Module.*?\s"),
    ],
    "torch": [
        (r"orch version", r"(?<!\w)(?:[Pp]y)?[Tt]orch version:?[ .]*\s*"),
        (r"ytorch ", r"\b[Pp]y[Tt]orch:?\s+(?:version )?"),
        (r"yTorch", r"\bPyTorch:?\s+(?:version:? )?"),
        (r"torch_version", r"\btorch_version[\"']?\s*[:=]\s*[\"']?"),
        (r"torch==", r"(?<![\w-])torch=="),
    ],
    "nccl": [(r"NCCL version", r"\bNCCL version:?\s+")],
}
"""Of the environment's fields: how logs name them, a literal and what stands before the version."""
_SUGGESTS = re.compile(
    r"""(?:\bnum_gpus|\bSLURM_NTASKS|\bSLURM_NPROCS|n_gpus?_per_node|\bnum_nodes)["']?[=:]\s*(\d+)"""
)
_NAME = re.compile(
    r"""["']?\b(?:arch|model_name|model_name_or_path|submission_benchmark|model_type)["']?"""
    r"""(?:\s*[:=]|",\s*"value":)\s*["']?([A-Za-z][\w./-]{2,60})"""
)
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


@dataclass
class Facts:
    """What a part of a log says of its job.

    Attributes:
        numbers: Name → every number that it is given, in order of appearance, each once.
        gpu: Name of the device; empty: it is not said.
        software: Field of the environment → its version; several are joined by a comma.
        model: Name of the model; empty: it has none.
        nodes: GPUs that a table of one node shows; 0: none.
        suggests: What only suggests N, in words.
    """

    numbers: dict[str, list[float]] = field(default_factory=dict)
    gpu: str = ""
    software: dict[str, str] = field(default_factory=dict)
    model: str = ""
    node_gpus: int = 0
    suggests: list[str] = field(default_factory=list)

    def number(self, name: str) -> float | None:
        """Return the number of this name; None: it is not said, or several are."""
        found = self.numbers.get(name, [])
        return found[0] if len(found) == 1 else None

    @property
    def identity(self) -> dict[str, object]:
        """What cannot change within a job."""
        stated: dict[str, object] = {
            name: self.number(name) for name in ("world_size", "layers", "hidden", "parameters")
        }
        return {name: value for name, value in stated.items() if value is not None}

    def merge(self, other: "Facts") -> None:
        """Add what another part of the same job's log says."""
        for name, values in other.numbers.items():
            mine = self.numbers.setdefault(name, [])
            mine += [value for value in values if value not in mine]
        self.gpu, self.model = self.gpu or other.gpu, self.model or other.model
        self.software = other.software | self.software
        self.node_gpus = max(self.node_gpus, other.node_gpus)
        self.suggests += [text for text in other.suggests if text not in self.suggests]


@cache
def _table() -> dict[str, list[tuple[str, re.Pattern[str] | Template]]]:
    data = tomllib.loads(
        (resources.files("scalebench.importing") / "facts.toml").read_text(encoding="utf-8")
    )
    return {
        name: [(key, _keyed(key, name == "parameters")) for key in entry["keys"]]
        + [(template(text).literal, template(text)) for text in entry["says"]]
        for name, entry in data.items()
    }


def _keyed(key: str, in_units: bool = False) -> re.Pattern[str]:
    """Return what finds a key's number; ``in_units``: also one in millions, else such is none."""
    unit = r"\s?(?P<unit>billion|million|[KMBT](?!\w))"
    return re.compile(
        rf"(?<![\w/])(?<!arallel )(?<!ocal ){re.escape(key)}{BETWEEN}"
        rf"(?P<n>(?>{NUMBER}))(?![\w.]*/){f'{unit}?' if in_units else f'(?!{unit})'}"
    )


def facts_of(text: str, own: Mapping[str, str] | None = None) -> Facts:
    """Read what a part of a log says of its job.

    ``own``: name of a number → the key that its format calls it by.
    """
    found = Facts()
    for name, ways in _table().items():
        extra = [(own[name], _keyed(own[name]))] if own and name in own else []
        values: dict[float, None] = {}
        for literal, way in [*extra, *ways]:
            for line in _lines_with(literal, text):
                for value in _numbers(way, line):
                    values[value] = None
        if values:
            found.numbers[name] = list(values)
    if len(batches := found.numbers.get("global_batch", [])) > 1 and "IMS_PER_BATCH" in text:
        found.numbers["global_batch"] = [max(batches)]  # the other one is that of the test
    _add_launch(found, text)
    _add_names(found, text)
    found.software = {name: said for name in SOFTWARE if (said := _version_of(name, text))}
    return found


def _version_of(name: str, text: str) -> str:
    """Return every version that a text gives of a driver or library, each once."""
    ways = [(literal, re.compile(before + _VERSION)) for literal, before in SOFTWARE[name]]
    found = (
        version[1].rstrip(".,")
        for literal, way in ways
        for line in _lines_with(literal, text)
        for version in way.finditer(line)
    )
    return ", ".join(dict.fromkeys(found))


def _lines_with(literal: str, text: str) -> Iterator[str]:
    at = text.find(literal)
    seen = 0
    while at >= 0 and seen < 500:
        begin, end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
        end = len(text) if end < 0 else end
        yield text[max(begin, at - 200) : min(end, at + 400)]
        seen += 1
        at = text.find(literal, end)


def _numbers(way: re.Pattern[str] | Template, line: str) -> Iterator[float]:
    pattern = way.pattern if isinstance(way, Template) else way
    for one in pattern.finditer(line):
        named = one.groupdict()
        value = float(named["n"].replace(",", "")) * _SCALES.get(named.get("unit") or "", 1)
        if value >= 1 and value < 1e18:
            yield value


def _add_launch(found: Facts, text: str) -> None:
    """Add N from torchrun's words and torchtitan's mesh, and what only suggests it."""
    sizes = found.numbers.setdefault("world_size", [])
    if not sizes and (mesh := _MESH.search(text)):
        sizes.append(float(prod(int(n) for n in mesh[1].split(","))))
    if not sizes and (per_node := _PER_NODE.search(text)):
        nodes = _NODES.search(text)
        if nodes or "--standalone" in text:
            sizes.append(float(int(per_node[1]) * int(nodes[1] if nodes else 1)))
        else:
            found.suggests.append(f"torchrun starts {per_node[1]} ranks a node")
    if not sizes:
        del found.numbers["world_size"]
    for one in dict.fromkeys(match[0] for match in _SUGGESTS.finditer(text)):
        found.suggests.append(f"it says {one.strip()}, which may be one node's")
    rows = {int(row[1]) for row in _SMI_ROW.finditer(text)}
    found.node_gpus = len(rows)
    if rows:
        found.suggests.append(f"nvidia-smi shows {len(rows)} GPUs of one node")


def _add_names(found: Facts, text: str) -> None:
    for literal in ("GPU", "NVIDIA", "Tesla", "device name", "submission_platform", "TPU", "AMD"):
        for line in _lines_with(literal, text):
            named = _GPU.search(line) if _GPU_LINE.search(line) else None
            if named:
                found.gpu = " ".join(named[0].split())
                break
            if "TPU_" in line:
                found.gpu = "TPU"
        if found.gpu:
            break
    for literal in ("arch", "model_name", "submission_benchmark", "model_type"):
        for line in _lines_with(literal, text):
            if not found.model and (name := _NAME.search(line)):
                found.model = name[1]


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
