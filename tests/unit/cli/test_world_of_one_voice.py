"""Of a world's processes one speaks, and the silent ones leave it the time to."""

import pytest

from scalebench import cli
from scalebench.errors import ExitCode


@pytest.mark.parametrize(("rank", "speaks"), [("0", True), ("1", False)])
def test_the_silent_wait_before_they_end_the_world(monkeypatch, capsys, rank, speaks):
    for name, value in {"RANK": rank, "WORLD_SIZE": "2", "LOCAL_RANK": rank,
                        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    waited = []
    monkeypatch.setattr(cli.time, "sleep", waited.append)
    with pytest.raises(SystemExit) as left:
        cli.main(["run", "ddp", "--launcher", "lab", "--link", "50mbit"])
    assert left.value.code == ExitCode.USAGE
    assert ("Leave out --launcher" in capsys.readouterr().err) == speaks
    assert waited == ([] if speaks else [cli.SILENT_S])
