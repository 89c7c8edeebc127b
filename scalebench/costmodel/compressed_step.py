"""A step with compressed gradients, from the one at N=1.

What is all-gathered grows with the number of ranks, and so does decoding it: every rank decodes
the messages of all. What is all-reduced stays as it is. Encoding does not depend on N.
"""

from dataclasses import replace

from scalebench.costmodel.step import StepShape


def with_messages(shape: StepShape, world_size: int, decode_s: float) -> StepShape:
    """Return the shape of a compressed step among ``world_size`` ranks.

    Args:
        shape: At N=1, where a rank gathers its own message only.
        world_size: N.
        decode_s: Decoding one message of each bucket, seconds of that step; the step ends so much
            later for each further message.
    """
    gathers = any(request.op == "all_gather" for request in shape.requests)
    if not gathers:
        return shape
    requests = tuple(
        request._replace(size_bytes=request.size_bytes * world_size)
        if request.op == "all_gather"
        else request
        for request in shape.requests
    )
    later_s = (world_size - 1) * decode_s
    parts = {samples: part_s + later_s for samples, part_s in shape.part_step_s.items()}
    return replace(shape, requests=requests, fixed_s=shape.fixed_s + later_s, part_step_s=parts)
