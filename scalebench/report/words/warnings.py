"""Marks: what a reader has to know before trusting a row, and what to do about it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scalebench.records.summary import Row
from scalebench.report.words.wording import place, plain


@dataclass(frozen=True)
class Mark:
    """A mark on a row.

    Attributes:
        letter: Stands for the name where there is no room for it.
    """

    name: str
    letter: str
    meaning: str
    remedy: str


MARKS = {
    mark.name: mark
    for mark in (
        Mark(
            "oversubscribed",
            "o",
            "More ranks than devices (on CPU: than cores). The ranks took turns, so this shows"
            " that the strategy runs, not how it scales.",
            "Read only sizes up to the number of devices as scaling; measure this size on a"
            " machine that has as many.",
        ),
        Mark(
            "virtual hosts",
            "v",
            "The hosts were network namespaces on one machine, joined by links of a set rate.",
            "Compare with other runs on virtual hosts of the same link and CPU share only.",
        ),
        Mark(
            "link not held",
            "l",
            "The virtual hosts' links together could carry more than the kernel is known to"
            " forward, so they may have been slower than their rate says.",
            "Give a lower --link or fewer hosts; read the measured bandwidth, not the set one.",
        ),
        Mark(
            "lost a rank",
            "k",
            "The process of a rank ended during training, and the others went on without it, as the"
            " method allows.",
            "Read the loss and the samples; measure speed in a run that keeps all its ranks.",
        ),
        Mark(
            "paced",
            "w",
            "The computation was not done but waited for: stages of a fixed duration. Gradients"
            " and communication were real.",
            "Read it as an experiment about communication, never as the speed of a model.",
        ),
        Mark(
            "one launch",
            "1",
            "The number rests on a single launch (one start of the processes), so it has no"
            " interval: it is not known how "
            "different the next launch would be.",
            "Run again with --repeats 3 or more.",
        ),
        Mark(
            "one log",
            "i",
            "The interval is that of the steps of one log: how much the next job would differ is"
            " not in it.",
            "Import the logs of further jobs of this size as well.",
        ),
        Mark(
            "batch not known",
            "j",
            "Neither the log nor the command says how many samples a step has. Where the log prints"
            " no rate of samples, the throughput is steps per second.",
            "Give --batch-per-gpu.",
        ),
        Mark(
            "unsteady",
            "u",
            "Step times had not settled when the warm-up limit was reached; they were measured"
            " all the same.",
            "Close other programs, fix the clocks, or raise the suite's warm-up limits"
            " (max_warmup_steps, max_warmup_s).",
        ),
        Mark(
            "deviates",
            "d",
            "Gradients or losses differ from the single-process reference by more than the"
            " tolerance. The speed of a wrong result counts for nothing.",
            "Find the parameter that deviates in the launch's record before reading the speed.",
        ),
        Mark(
            "unverified",
            "n",
            "The result could not be checked against the single-process reference.",
            "Read the stated reason; a workload without randomness or batch statistics can"
            " usually be verified.",
        ),
        Mark(
            "steps differ",
            "m",
            "The mean step is more than 10 % longer than the typical one. Throughput, speedup and"
            " efficiency rest on the mean: a job takes the time of all of its steps.",
            "Read below the table which steps are long: often those that wait for a batch.",
        ),
        Mark(
            "samples not counted",
            "q",
            "How many samples the script trains on in a step is not known, so its throughput is"
            " steps per second. Speedup and efficiency rest on what its modules are given, on its"
            " backward passes, or on --scaling.",
            "Feed the script by a torch DataLoader, give --samples-per-step, or call"
            " scalebench.step(samples=...) after each step.",
        ),
        Mark(
            "ended early",
            "x",
            "The script ended before everything was measured: the numbers rest on the steps that"
            " it made.",
            "Have the script train longer; scalebench ends it when everything is measured.",
        ),
        Mark(
            "killed at its end",
            "z",
            "The script ran on for more than 10 s after its measurement and was killed: what it"
            " does at its end, as a last checkpoint, may be missing. The numbers are not touched.",
            "Give --to-the-end if the script has to end by itself.",
        ),
        Mark(
            "bound",
            "B",
            "The ranks communicated nothing and trained apart: no compression method can be"
            " faster. It is a limit to read the others by, not a way to train.",
            "Compare steps with it, never losses.",
        ),
        Mark(
            "communication unseen",
            "h",
            "The trace does not have all collectives that the compression hook began:"
            " communication is larger than the trace says, and counted as idle.",
            "Read step time, bytes and gradient error; name no cause of the lost time.",
        ),
        Mark(
            "budget open",
            "b",
            "The parts of the lost time do not add up to the step within 2 %, or the steps next "
            "to the traced ones were more than 25 % longer or shorter than the others.",
            "Name no cause from this row; close other programs and run again with more --repeats.",
        ),
        Mark(
            "estimates disagree",
            "e",
            "Independent estimates of exposed communication differ by more than their intervals"
            " and by more than 1 % of the step.",
            "Compare the three under Communication before trusting any one; more --repeats narrow"
            " them.",
        ),
        Mark(
            "kernels lost",
            "g",
            "Up to 1 % of the kernels are missing in the traces, or begin before their launch:"
            " CUPTI lost or shifted them.",
            "Use a torch built for CUDA 13.1 or later. Times of the steps are not affected.",
        ),
        Mark(
            "probe effect",
            "p",
            "The instruments of the clean window made its steps longer than bare ones by more"
            " than 0.5 %: the step time is too long by that much.",
            "Use a larger workload, whose steps take longer than what is measured about them.",
        ),
        Mark(
            "throttled",
            "t",
            "A device lowered its clock during the measurement, for its temperature or its power"
            " limit.",
            "Cool the machine or lower the clock to one that it can hold, then run again.",
        ),
        Mark(
            "clocks differ",
            "c",
            "Devices or launches ran at different clocks: the baseline and this row are not"
            " comparable.",
            "Lock the clocks (nvidia-smi -lgc, or the governor performance) and run again.",
        ),
        Mark(
            "slow wires",
            "y",
            "NCCL's own log says that ranks use a slower wire than the machine has.",
            "Set the variable that stands under Communication on the page, or with show --verbose,"
            " and run again; scalebench doctor --links shows this machine's wires alone.",
        ),
        Mark(
            "foreign load",
            "f",
            "Other programs used the processor or the device during the measurement.",
            "Stop them, or take the machine for yourself, and run again.",
        ),
        Mark(
            "allocator retries",
            "a",
            "The device's memory was full: the allocator had to free and ask again, which makes"
            " steps long and unequal.",
            "Use a smaller batch or fewer cases that hold memory.",
        ),
        Mark(
            "swap",
            "s",
            "The machine moved memory to disk during the measurement.",
            "Use fewer ranks or a smaller batch, or close what holds the memory.",
        ),
        Mark(
            "skipped steps",
            "r",
            "Gradients overflowed in float16: these steps took time and changed nothing. The step"
            " time counts theirs as well.",
            "Few at the doubling of the loss scale are normal; else train in bfloat16.",
        ),
    )
}


OF_THE_HEADLINE = frozenset(
    {
        *("deviates", "unverified", "unsteady", "probe effect", "throttled", "foreign load"),
        *("allocator retries", "swap", "link not held", "samples not counted"),
    }
)
"""Marks under which step, speedup and efficiency themselves may be wrong."""


SAID = {
    "budget open": "parts do not add up",
    "unsteady": "step time kept drifting",
    "foreign load": "other programs were running",
}
"""Stamps whose name says little, in a sentence's words."""


def said(name: str) -> str:
    """Return what a mark is called in a sentence."""
    return SAID.get(name, name)


def mark_name(stamp: str) -> str:
    """Return the name of a stamp, which may carry details behind a colon."""
    return plain(stamp.partition(":")[0], 40)


def details(row: Row, name: str) -> str:
    """Return what a row's stamps of a name say in detail; empty: nothing."""
    told = (plain(stamp.partition(":")[2], 200) for stamp in row.stamps if mark_name(stamp) == name)
    return "; ".join(text for text in told if text)


def bearers(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    """Say which rows have a mark: one text for each of its details."""
    told: dict[str, list[str]] = {}
    several = len({row.suite for row in rows}) > 1
    for row in rows:
        if name in marks(row):
            of = f"{plain(row.suite, 64)}: " if several else ""
            told.setdefault(details(row, name), []).append(of + place(row))
    return tuple(
        f"{'; '.join(places)}: {found}" if found else "; ".join(places)
        for found, places in told.items()
    )


def marks(row: Row) -> tuple[str, ...]:
    """Return the names of a row's marks, the gravest first, each once."""
    found: list[str] = []
    if row.correctness is not None and row.correctness.status in ("deviates", "unverified"):
        found.append(row.correctness.status)
    if row.oversubscribed:
        found.append("oversubscribed")
    found += [mark_name(stamp) for stamp in row.stamps]
    if row.step_s is not None and row.step_s.n == 1 and "one log" not in row.stamps:
        found.append("one launch")
    if row.virtual_hosts:
        found.append("virtual hosts")
    return tuple(dict.fromkeys(name for name in found if name))


def explain(name: str) -> Mark:
    """Return the explanation of a mark; an unknown one says that it is unknown."""
    unknown = Mark(
        name,
        name[:1],
        "A mark that this version has no explanation for.",
        "Read the row with care; a newer scalebench may explain it.",
    )
    return MARKS.get(name, unknown)


def letters(names: Iterable[str]) -> str:
    """Return the marks as single letters, for tables without room for words."""
    return " ".join(explain(name).letter for name in names)
