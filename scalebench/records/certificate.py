"""A certificate: what the self-test injected, what scalebench made of it, and the verdict.

A line is decided only if the noise of this machine allows it. Its error, give or take the noise,
lies inside the limit (passed), outside it (failed), or across it (not decided).
"""

from typing import Literal

from pydantic import FiniteFloat

from scalebench.spec.base import Record

FORMAT = "scalebench.certificate/1"

Unit = Literal["s", "bit/s", "ratio", "elements"]
Form = Literal["quick", "full"]


class Line(Record):
    """One quantity.

    Attributes:
        injected: What was injected; null: nothing that has a size.
        recovered: What scalebench made of it; null: nothing, see ``reason``.
        error_ratio: Recovered minus injected, over what the limit refers to: the injected
            quantity, or the step where ``limit_of`` says so.
        noise_ratio: By how much the error may be wrong because of this machine's noise (95 %).
        limit: For the size of ``error_ratio``.
        limit_of: What error and limit are ratios of.
        passed: null: not decided, or not tried; see ``reason``.
        reason: Why it is not decided, or failed.
        detail: What else has to be known: which rank, how many hosts, how many repeats.
        tried: False: it cannot be done here.
    """

    name: str
    unit: Unit = "ratio"
    injected: FiniteFloat | None = None
    recovered: FiniteFloat | None = None
    error_ratio: FiniteFloat | None = None
    noise_ratio: FiniteFloat | None = None
    limit: FiniteFloat | None = None
    limit_of: str = "injected"
    passed: bool | None = None
    reason: str | None = None
    detail: str = ""
    tried: bool = True


class Certificate(Record):
    """The lines of one self-test.

    Attributes:
        id: Of this certificate; runs that were made under it store it.
        seed: Of the random choices: the same seed injects the same.
        machine: The fields of the fingerprint that have to agree for it to hold.
        seconds: What the self-test took.
    """

    format: str = FORMAT
    id: str
    created: str
    version: str
    form: Form
    seed: int
    seconds: FiniteFloat
    machine: dict[str, object]
    lines: tuple[Line, ...]

    @property
    def failed(self) -> list[Line]:
        """The lines that failed."""
        return [line for line in self.lines if line.passed is False]

    @property
    def undecided(self) -> list[Line]:
        """The lines that were tried and could not be decided."""
        return [line for line in self.lines if line.passed is None and line.tried]

    @property
    def not_tried(self) -> list[Line]:
        """The lines that cannot be tried here."""
        return [line for line in self.lines if not line.tried]

    @property
    def num_passed(self) -> int:
        """How many lines passed."""
        return sum(line.passed is True for line in self.lines)


def checked(line: Line) -> Line:
    """Return a line with its verdict: error and noise compared with the limit.

    A line that is decided already, or has nothing to compare it with, is returned as it is.
    """
    if line.passed is not None or line.error_ratio is None or line.limit is None:
        return line
    error, noise = abs(line.error_ratio), line.noise_ratio or 0.0
    if error + noise <= line.limit:
        return line.model_copy(update={"passed": True})
    if error - noise > line.limit:
        reason = f"off by {_percent(error)} where {_percent(line.limit)} are allowed"
        return line.model_copy(update={"passed": False, "reason": reason})
    reason = f"noise of ±{_percent(noise)} crosses the limit of {_percent(line.limit)}"
    return line.model_copy(update={"reason": reason})


def _percent(ratio: float) -> str:
    return f"{ratio * 100:.3g} %"


def cannot(name: str, why: str) -> Line:
    """Return the line of something that cannot be tried here."""
    return Line(name=name, reason=why, tried=False)
