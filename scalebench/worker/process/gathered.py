"""What ranks tell one another over gloo: JSON, never pickled objects.

torch's own ``all_gather_object`` unpickles what it receives: who can connect to a rank could have
it run anything.
"""

import json
from typing import Any

import torch
import torch.distributed as dist


def gather_json(item: Any, group: "dist.ProcessGroup") -> list[Any]:
    """Return what every rank of a group has given, by rank; tuples come back as lists.

    Args:
        item: What JSON can hold.
        group: Of CPU tensors; all of its ranks call this.
    """
    data = torch.frombuffer(bytearray(json.dumps(item).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    dist.all_gather(lengths, torch.tensor([len(data)]), group)
    longest = max(int(length) for length in lengths)
    texts = [torch.empty(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(texts, torch.cat((data, data.new_zeros(longest - len(data)))), group)
    return [
        json.loads(text[: int(length)].numpy().tobytes())
        for text, length in zip(texts, lengths, strict=True)
    ]


def dtype_of(name: str) -> torch.dtype:
    """Return the type that ``str`` makes a name of, such as ``torch.float32``."""
    found = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"{name!r} is no type of a tensor")
    return found
