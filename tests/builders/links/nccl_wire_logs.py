"""Small logs in NCCL's format: each says where a public log of this version and kind stands.

Written for the tests: hosts, addresses, pointers and most lines are our own.
"""

import re

from tests.recorded import sections

LOGS = {of.partition(":")[0]: text for of, text in sections("nccl_wire_logs.txt").items()}


def log(text: str, host: str = "a", pid: int = 100) -> str:
    """Put NCCL's prefix before lines; ``@b2 `` before a line: of host b, device 2."""
    lines = []
    for line in text.strip("\n").splitlines():
        found = re.match(r"@([a-z]+)(\d) (.*)", line)
        at, device, said = found.groups() if found else (host, "0", line)
        number = pid + int(device)
        lines.append(f"{at}:{number}:{number + 50} [{device}] NCCL INFO {said}")
    return "\n".join(lines) + "\n"
