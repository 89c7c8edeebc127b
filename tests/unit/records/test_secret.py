"""How a secret reaches the processes of a world, and what is not taken for one."""

import os

import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.storage.secret import WorldSecret, given_secret, read_secret, secret_files
from scalebench.spec.world import Rendezvous

LONG = "x" * 32


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def world(host="n1", port=29500, **more):
    return Rendezvous(host=host, port=port, **more)  # type: ignore[arg-type]


def test_a_secret_of_the_environment_leaves_no_file():
    secret = WorldSecret(world(), {"SCALEBENCH_SECRET": LONG})
    assert secret.value == LONG and not any(path.exists() for path in secret_files(world()))
    with pytest.raises(UsageError, match="at least 32"):
        given_secret({"SCALEBENCH_SECRET": "short"})
    assert given_secret({"SCALEBENCH_TRUST_NETWORK": "0"}) is None
    assert given_secret({"SCALEBENCH_TRUST_NETWORK": "1"}) is not None


def test_a_file_is_for_its_user_alone_and_goes_with_its_world():
    secret = WorldSecret(world(), {})
    files = secret_files(world())
    assert [read_secret(path) for path in files] == [secret.value] * 2
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    after = WorldSecret(world(), {})  # the first one was killed, and has left its files
    assert after.value != secret.value
    secret.remove_files()
    assert [read_secret(path) for path in files] == [after.value] * 2
    after.remove_files()
    assert not any(path.exists() for path in files)


def test_what_somebody_else_may_have_written_is_not_read(tmp_path):
    path = tmp_path / "secret"
    path.write_text(LONG)
    path.chmod(0o644)
    assert read_secret(path) is None
    path.chmod(0o600)
    assert read_secret(path) == LONG
    (tmp_path / "link").symlink_to(path)
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert read_secret(tmp_path / "link") is None
    assert read_secret(tmp_path / "fifo") is None  # and is not waited for
    assert read_secret(tmp_path) is None
    if os.geteuid() == 0:
        os.chown(path, 65534, 65534)
        assert read_secret(path) is None


def test_without_a_place_for_it_it_is_said_what_to_do(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/no")
    monkeypatch.chdir("/proc")
    with pytest.raises(EnvironmentUnfit, match=r"SCALEBENCH_SECRET.*mpirun -x.*--trust-network"):
        WorldSecret(world(), {})
