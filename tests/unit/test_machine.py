"""What the operating system says of the machine, from files as it writes them."""

import pytest

from scalebench import machine

NVIDIA = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\n"
    "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
)
NVIDIA_OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  "
    "(dvs-builder@U16-I3-B03-4-3)  Sat May 24 07:26:22 UTC 2025\n"
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (NVIDIA, "550.54.15"),
        (NVIDIA_OPEN, "575.57.08"),
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256  Thu\n", "470.256"),
        ("6.8.5\n", "6.8.5"),
        ("nothing of the kind\n", None),
        ("", None),
    ],
)
def test_the_driver_tells_its_version(tmp_path, text, version):
    path = tmp_path / "version"
    path.write_text(text)
    assert machine.driver_version([str(tmp_path / "absent"), str(path)]) == version


def test_another_driver_is_another_machine():
    ours = machine.fingerprint({"torch": "2.13.0", "devices": []})
    theirs = ours | {"driver": "550.54.15"}
    assert machine.differences(ours, theirs) == ["driver"]
    assert machine.elsewhere(machine.identity(theirs), ours) == ["driver"]
    assert machine.elsewhere(machine.identity(ours), ours) == []
    assert machine.elsewhere({}, ours) == ["unknown machine"]
