"""What a row says of whether two launches with one seed compute the same."""

from pydantic import BaseModel


class Reproducible(BaseModel):
    """The losses of a row's launches, compared bit for bit in every rank.

    Attributes:
        equal: Whether all are the same.
        first_step: The first step whose losses differ, by number from 0; null: none.
        num_steps: So many steps were compared.
        num_launches: So many launches.
        seeds_differ: Whether torch's seed was another, so that a script sets none; null: it was not
            recorded, as in suites, whose seed is fixed.
        operations: Those that torch says are not deterministic, where the script asks it with
            ``use_deterministic_algorithms(True, warn_only=True)``.
    """

    equal: bool
    first_step: int | None = None
    num_steps: int
    num_launches: int
    seeds_differ: bool | None = None
    operations: list[str] = []

    @property
    def sentence(self) -> str:
        """What that comes to, without a full stop."""
        launches = f"{self.num_launches} launches"
        if self.equal:
            return f"{launches} have the same losses in {self.num_steps} steps, bit for bit"
        said = f"{launches} have other losses from step {self.first_step} on"
        if self.seeds_differ:
            return f"{said}: torch's seed differs, as nothing sets it"
        if self.operations:
            return (
                f"{said}; torch says of {', '.join(self.operations)} that it is not deterministic"
            )
        return said
