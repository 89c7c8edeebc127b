"""What torch says of a machine is remembered for this host and these devices, and no others."""

import platform

import pytest

from scalebench.session.machine.survey import survey_key


def touch(root, name):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text("")


CHANGES = {
    "another host": lambda root, set_: set_.setattr(platform, "node", lambda: "gpu-17"),
    "another GPU": lambda root, set_: touch(root, "dev/nvidia1"),
    "a GPU of AMD": lambda root, set_: touch(root, "dev/dri/renderD128"),
    "a slice of a GPU": lambda root, set_: touch(
        root, "proc/driver/nvidia/capabilities/gpu0/mig/gi1/access"
    ),
    "a GPU that is taken away": lambda root, set_: (root / "dev/nvidia0").unlink(),
    "a choice of AMD's": lambda root, set_: set_.setenv("HIP_VISIBLE_DEVICES", "1"),
    "another order": lambda root, set_: set_.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID"),
    "another driver": lambda root, set_: (root / "proc/driver/nvidia/version").write_text("580"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_an_answer_is_for_this_host_and_these_devices(tmp_path, monkeypatch, change):
    for name in ("dev/nvidia0", "dev/nvidiactl", "proc/driver/nvidia/version"):
        touch(tmp_path, name)
    before = survey_key(tmp_path)
    assert survey_key(tmp_path) == before
    touch(tmp_path, "dev/nvidia-uvm")
    assert survey_key(tmp_path) == before  # no device of its own
    change(tmp_path, monkeypatch)
    assert survey_key(tmp_path) != before
