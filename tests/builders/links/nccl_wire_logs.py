"""Small logs in NCCL's format: each says where a public log of this version and kind stands.

Written for the tests: hosts, addresses, pointers and most lines are our own.
"""

from tests.recorded import sections

LOGS = {of.partition(":")[0]: text for of, text in sections("nccl_wire_logs.txt").items()}


def log(text: str) -> str:
    """Put NCCL's prefix before lines."""
    return "".join(f"a:100:150 [0] NCCL INFO {line}\n" for line in text.strip("\n").splitlines())
