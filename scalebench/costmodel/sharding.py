"""What sharded strategies share: which of them divide what, and the groups that they gather.

Sources: Rajbhandari et al. 2020 (ZeRO); Zhao et al. 2023 (PyTorch FSDP).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from scalebench.costmodel.frameworks import wraps_with
from scalebench.spec import Execution, FromFramework, Fsdp, Fsdp1, Zero1

DTYPE_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class Groups:
    """Parameters that are gathered together, as elements of the gathered tensors.

    Attributes:
        inner: Of each group but the root, padding included.
        root: Of what is in no other group; gathered once a step.
    """

    inner: tuple[int, ...]
    root: int

    @classmethod
    def of(cls, sizes: Sequence[int] | None, num_parameters: int) -> "Groups":
        """Return the groups of a rank's fact ``group_elements``, the root last.

        None: not known. Then all parameters count as one group, without a root.
        """
        if not sizes:
            return cls((num_parameters,), 0)
        return cls(tuple(sizes[:-1]), sizes[-1])

    @property
    def total(self) -> int:
        """All elements."""
        return sum(self.inner) + self.root

    @property
    def largest(self) -> int:
        """Elements of the largest group; of the root where it is the only one."""
        return max(self.inner, default=self.root)


@dataclass(frozen=True)
class Sharding:
    """How a strategy divides the model's state over its ranks.

    Attributes:
        stage: Of ZeRO: 0 nothing is divided, 1 the optimizer's state, 3 parameters and gradients
            as well.
        shards: Ranks among which it is divided.
        replicas: Groups of so many ranks that do the same; ``shards · replicas`` is N.
        reshards: Whether gathered parameters are given up between forward and backward.
        param_bytes: Of an element as it is gathered.
        reduce_bytes: Of an element of a gradient as it is reduced.
        on_host: Whether shards, their gradients and the optimizer are in the host's memory.
    """

    stage: int
    shards: int
    replicas: int
    reshards: bool = True
    param_bytes: int = 4
    reduce_bytes: int = 4
    on_host: bool = False


def sharding_of(strategy: Execution, world_size: int) -> Sharding:
    """Return how a strategy divides the model's state at a size."""
    if isinstance(strategy, Fsdp):
        shards = strategy.shards(world_size)
        return Sharding(
            stage=3,
            shards=shards,
            replicas=world_size // shards,
            reshards=strategy.reshard_after_forward,
            param_bytes=DTYPE_BYTES[strategy.param_dtype],
            reduce_bytes=DTYPE_BYTES[strategy.reduce_dtype],
            on_host=strategy.cpu_offload,
        )
    if isinstance(strategy, Fsdp1):
        return Sharding(3, world_size, 1, strategy.reshard_after_forward)
    if wraps_with(strategy, "fsdp2"):
        return Sharding(3, world_size, 1)
    if isinstance(strategy, FromFramework):
        return Sharding(strategy.zero_stage, world_size, 1)
    return Sharding(1 if isinstance(strategy, Zero1) else 0, world_size, 1)


@dataclass(frozen=True)
class InFlight:
    """What a rank holds in addition to its shards and activations while it computes, bytes.

    Attributes:
        forward: When forward ends and activations are most.
        backward: While a group's gradients are reduced.
    """

    forward: int
    backward: int


def in_flight(sharding: Sharding, groups: Groups) -> InFlight:
    """Return the unsharded groups that are in flight.

    With resharding: in forward the root and one group; in backward the root, its gradients, and
    of the largest group its gradients, the buffer that these are reduced from and the buffer of
    the group that is gathered ahead. Without: all parameters, and in backward one group's
    gradients and buffer more, its parameters less.
    """
    if sharding.stage < 3:
        return InFlight(0, 0)
    param, reduce = sharding.param_bytes, sharding.reduce_bytes
    group = groups.largest if groups.inner else 0
    if not sharding.reshards:
        return InFlight(param * groups.total, param * groups.total + reduce * group)
    root = param * groups.root
    return InFlight(root + param * group, 2 * root + (2 * param + reduce) * group)
