"""A model as the row of layers that a pipeline cuts: what each costs and hands on.

Apart from the pipeline's step, because ranks read it and should not import the solvers of fits.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class TiedParameter:
    """A parameter that several layers share: ranks that hold it sum its gradients.

    Attributes:
        layers: Numbers of the layers, ascending.
        num_bytes: Of its gradient.
    """

    layers: tuple[int, ...]
    num_bytes: int


@dataclass(frozen=True)
class Layers:
    """What a pipeline's layers cost, counted and not timed.

    Attributes:
        costs: Of each layer, any unit: FLOPs of a microbatch, or parameters.
        output_bytes: Of each layer's output for a microbatch.
        tied: Parameters that several layers share.
        parameter_bytes: Of each layer; what layers share counts in each of them.
        kept_bytes: What each layer keeps of a microbatch for its backward pass.
    """

    costs: tuple[float, ...]
    output_bytes: tuple[int, ...]
    tied: tuple[TiedParameter, ...] = ()
    parameter_bytes: tuple[int, ...] = ()
    kept_bytes: tuple[int, ...] = ()
