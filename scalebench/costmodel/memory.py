"""Memory of the model's state per rank, by the strategy's law (ZeRO; Rajbhandari et al. 2020)."""

from scalebench.spec import Ddp, Strategy

FP32_BYTES = 4
ADAM_MOMENTS = 2


def predict_state_bytes(strategy: Strategy, num_parameters: int) -> int:
    """Return bytes per rank of parameters, gradients, Adam's moments and gradient buckets.

    float32 parameters (autocast keeps them so): ``4Ψ + 4Ψ + 8Ψ``; DDP adds ``4Ψ`` of buckets
    unless the gradients are views into them. Activations come on top and are not modelled here.

    Args:
        strategy: How the model is trained.
        num_parameters: Ψ, parameters of the model.
    """
    copies = 1 + 1 + ADAM_MOMENTS
    if isinstance(strategy, Ddp) and not strategy.gradient_as_bucket_view:
        copies += 1
    return copies * FP32_BYTES * num_parameters
