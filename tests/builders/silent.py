"""Traces whose operations have no sizes."""

from tests.builders.traces import annotation, op

BACKWARD = "autograd::engine::evaluate_function: MmBackward0"
ALONE = {
    "Collective name": "allreduce",
    "In msg nelems": 1000,
    "Out msg nelems": 1000,
    "dtype": "Float",
    "Group size": 1,
    "Process Group Name": "0",
    "Seq": 17,
}


def asked(start, seq=17, thread=1, **changes):
    """A reduction as torch asks NCCL for it; the record is 5 µs after the request."""
    return [
        op("c10d::allreduce_", start, start + 25, thread=thread),
        op(
            "record_param_comms",
            start + 5,
            start + 24,
            thread=thread,
            **ALONE | {"Seq": seq} | changes,
        ),
        annotation("nccl:all_reduce", start + 6, start + 20, thread=thread),
    ]
