"""A log that still grows: what its newest lines say, without reading it again."""

import copy
from pathlib import Path

from scalebench.importing.formats import Format
from scalebench.importing.job import Stated, job_of
from scalebench.importing.lines import opened, text_of
from scalebench.importing.reader import Reader


class Follower:
    """Reads what a log has got since it was last looked at.

    The log may not be there yet.
    """

    def __init__(self, path: Path, stated: Stated, known: list[Format]) -> None:
        self.path, self.stated = path, stated
        self.reader = Reader(path, known)
        self.at = 0

    def look(self) -> str:
        """Return in one line how far the job has come and how fast it is."""
        text = self._newest()
        if text:
            self.reader.feed(text)
        log = self.reader.log()
        if log is None:
            return "no step yet"
        log.records = copy.deepcopy(log.records)  # ranks may still print of the newest steps
        log.records.close()
        if not len(log.records):
            return "no step yet"
        job = job_of(log, self.stated, any_size=True)
        parts = [f"step {log.records.columns['step'][-1]:.0f}"]
        if job.step_s:
            mean = sum(s * n for s, n in zip(job.step_s, job.counts, strict=True)) / sum(job.counts)
            parts += [f"{mean:.4g} s a step", f"last {job.step_s[-1]:.4g} s"]
        for rate, unit in ((job.samples_per_s, "samples/s"), (job.tokens_per_s, "tokens/s")):
            parts += [f"{rate:.4g} {unit}"] if rate else []
        if job.loss_last is not None:
            parts.append(f"loss {job.loss_last:.4g}")
        return " · ".join(parts)

    def _newest(self) -> str:
        """Return the whole lines that were added."""
        if not self.path.exists():
            return ""
        with opened(self.path) as file:
            file.seek(self.at)
            piece = file.read()
        end = max(piece.rfind(b"\n"), piece.rfind(b"\r")) + 1
        self.at += end
        return text_of(piece[:end])
