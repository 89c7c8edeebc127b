"""The user's own script."""

from typing import ClassVar, Literal

from scalebench.spec.strategies.execution import Execution


class Script(Execution):
    """As the user's own script distributes its training; see `scalebench.spec.script`.

    There is no bare model in one process to compare with: the script at N=1 takes its place.
    """

    kind: Literal["script"] = "script"
    about = "your own training script, unmodified: scalebench run -- train.py"
    has_reference: ClassVar[bool] = False

    @property
    def always_communicates(self) -> str | None:
        """Why no step of it can do without the other ranks."""
        return "when ranks communicate is decided by the script"
