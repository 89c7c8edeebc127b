"""Whether processes of this machine can connect: in a network namespace nothing can."""

import subprocess
import sys

import pytest

from scalebench.launch.loopback import check_loopback, why_no_loopback

PROGRAM = "from scalebench.launch.loopback import why_no_loopback; print(why_no_loopback())"


def test_here_they_can() -> None:
    assert why_no_loopback() is None
    check_loopback()


@pytest.mark.parametrize(
    ("set_up", "reason"),
    [
        ("true", "Network is unreachable"),
        ("ip link set lo up && ip address del 127.0.0.1/8 dev lo", "Cannot assign requested"),
    ],
    ids=["down", "IPv6 only"],
)
def test_why_they_cannot_is_told(set_up: str, reason: str) -> None:
    made = ["unshare", "-rn", "sh", "-c", f'{set_up} || exit 77; exec "$@"', "sh"]
    done = subprocess.run([*made, sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no such namespace can be made here: {done.stderr.strip()}")
    assert reason in done.stdout, done.stdout + done.stderr
