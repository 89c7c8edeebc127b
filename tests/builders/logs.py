"""Logs of other programs: what they print, line by line, and small ones as they are read."""

from scalebench.importing.formats import formats
from scalebench.importing.job import Stated, job_of
from scalebench.importing.reader import read_log
from scalebench.importing.steps import steps_of
from tests.recorded import sections


def log_of(folder, lines, end="\n", own=None):
    """Read a log of these lines, or of a text as it stands."""
    text = lines if isinstance(lines, str) else end.join(lines) + end
    path = folder / "train.log"
    path.write_bytes(text.encode())
    return read_log(path, formats(own, "scalebench.toml") if own else formats())


def steps_in(folder, lines, batch=None):
    return steps_of(log_of(folder, lines), batch)


def job_in(folder, lines, gpus=8, **stated):
    return job_of(log_of(folder, lines), Stated(gpus=gpus, **stated))


def every_2_s(line, steps=12):
    """Return one line a step, every second by the clock another two."""
    return [line.format(2 * i, i=i) for i in range(1, steps + 1)]


DAY = "2024-05-01 10:00:{0:02d}"
LINES = {title: text[:-1] for title, text in sections("log_lines.txt").items()}
"""Format, and what is special about it → what it prints for step {i}, after {0} seconds."""
