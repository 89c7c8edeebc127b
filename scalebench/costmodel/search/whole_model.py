"""A model whose layers the search does not know: any workload that one rank has measured.

Ranks can divide its samples and its state, not its matrices, tokens or layers.
"""

from dataclasses import dataclass

from scalebench.costmodel.search.model import SearchModel

AXES_OF_WHOLE = ("shard", "data")
"""Axes of a mesh that need to know nothing of the model's inside."""


@dataclass(frozen=True)
class WholeModel(SearchModel):
    """A model as numbers of the whole; what a transformer would have counts as one.

    Attributes:
        layers: Groups of parameters that are gathered together when they are sharded.
        parameters: Of the model.
        sample_flops: FLOPs of forward and backward, one sample; 1: not counted, and the measured
            time of a sample stands for it.
    """

    parameters: int = 0
    sample_flops: float = 1.0

    @classmethod
    def of(
        cls, name: str, parameters: int = 0, groups: int = 1, flops: float | None = None
    ) -> "WholeModel":
        """Return a model by its numbers; without parameters it is one that is not measured yet."""
        return cls(
            name=name,
            layers=groups,
            heads=1,
            width=1,
            context=1,
            vocabulary=1,
            kv_heads=1,
            inner=4,
            parameters=parameters,
            sample_flops=flops or 1.0,
        )

    @property
    def is_counted(self) -> bool:
        """Whether its FLOPs are known."""
        return self.sample_flops != 1.0

    @property
    def block_parameters(self) -> int:
        """Of a group; all groups are taken as equal."""
        return self.parameters // self.layers

    @property
    def table_parameters(self) -> int:
        """0: there is no embedding apart from the groups."""
        return 0

    @property
    def num_parameters(self) -> int:
        """All of them."""
        return self.parameters

    @property
    def matrix_flops(self) -> float:
        """A third of a group's FLOPs: forward."""
        return self.sample_flops / 3 / self.layers

    @property
    def mixing_flops(self) -> float:
        """0: in the others."""
        return 0.0

    @property
    def head_flops(self) -> float:
        """0: in the others."""
        return 0.0
