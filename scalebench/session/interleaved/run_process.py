"""A process that is ``scalebench run`` of one version, and may make further rounds when asked."""

import os
import subprocess
from collections.abc import Collection, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from scalebench.errors import EnvironmentUnfit, ExitCode, UsageError
from scalebench.session.interleaved.connection import AskingEnd

END_LIMIT_S = 120.0
"""For a run that is told that no further round is wanted."""


@dataclass(frozen=True)
class Version:
    """One version of what is measured.

    Attributes:
        python: Its interpreter, in which scalebench is installed.
        folder: Where it is run: the project, or another checkout of it.
    """

    name: str
    python: str
    folder: Path


class RunProcess:
    """A run that is under way.

    Args:
        version: Whose.
        arguments: Of its interpreter.
        log: File for what it prints on standard error.
        waits: Whether it is to wait for requests for further rounds.

    Raises:
        UsageError: The interpreter cannot be started.
    """

    def __init__(
        self, version: Version, arguments: Sequence[str], log: Path, waits: bool = False
    ) -> None:
        self.version, self.log = version, log
        self._asking = AskingEnd() if waits else None
        theirs = None if self._asking is None else self._asking.theirs
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as errors, nullcontext() if theirs is None else theirs:
            try:
                self._process = subprocess.Popen(
                    [version.python, *arguments],
                    cwd=version.folder,
                    env=dict(os.environ) if self._asking is None else self._asking.environment(),
                    pass_fds=[] if theirs is None else [theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=errors,
                )
            except OSError as error:
                if self._asking is not None:
                    self._asking.close()
                raise UsageError(
                    f"{version.name}: {version.python} in {version.folder} cannot be started: "
                    f"{error.strerror}. Check --base-python and --base-dir."
                ) from error

    def can_go_on(self) -> bool:
        """Wait until its first round is done; tell whether it can make a further one."""
        return self._asking is not None and self._asking.can_go_on()

    def make_round(self, only: Collection[str]) -> None:
        """Have it measure a further round, and wait until it has.

        Raises:
            EnvironmentUnfit: It ended before.
        """
        assert self._asking is not None
        self._asking.ask(only)
        if not self._asking.can_go_on():
            self.end()
            raise EnvironmentUnfit(
                f"{self.version.name}: scalebench run ended before its round was done: {self.log}"
            )

    def end(self) -> None:
        """Let it end; failed cells are stored and judged, anything else ends the comparison.

        Raises:
            UsageError: It refused its arguments.
            EnvironmentUnfit: It could not be made, or does not end.
        """
        limit_s = None
        if self._asking is not None:
            self._asking.close()
            limit_s = END_LIMIT_S
        try:
            code = self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise EnvironmentUnfit(
                f"{self.version.name}: scalebench run did not end within {END_LIMIT_S:g} s of "
                f"being told to: {self.log}"
            ) from None
        if code in (ExitCode.OK, ExitCode.CELLS_FAILED):
            return
        said = self.log.read_text(errors="replace").strip().splitlines()
        last = (said or ["it printed nothing"])[-1][:400]
        kind = UsageError if code == ExitCode.USAGE else EnvironmentUnfit
        raise kind(f"{self.version.name}: scalebench run ended with {code}: {last}")
