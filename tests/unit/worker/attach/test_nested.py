"""A launcher inside a script is recognised by its command, or by what it sets for its ranks."""

import pytest

from scalebench.worker.attach.nested import launched


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("torchrun --nproc-per-node 2 t.py --lr 1", ("torchrun", "t.py --lr 1")),
        ("/e/bin/python -m torch.distributed.run t.py", ("torch.distributed.run", "t.py")),
        ("/e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
        ("/e/bin/python /e/bin/accelerate launch t.py", ("accelerate launch", "t.py")),
        ("deepspeed --num_gpus 2 -m pack", ("deepspeed", "train.py")),
        ("accelerate config", None),
        ("python t.py torchrun", None),
        ("git log torchrun", None),
        ("nvidia-smi", None),
    ],
)
def test_a_command(words: str, found: tuple[str, str] | None) -> None:
    assert launched(words.split(), {}) == found


def test_ranks_of_torchrun_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_RUN_ID", raising=False)
    words = ["python", "-u", "t.py", "1"]
    env = {b"RANK": b"0", b"TORCHELASTIC_RUN_ID": b"x"}
    assert launched(words, env) == ("torchrun", "t.py 1")
    assert launched(words, {"RANK": "0"}) is None
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")  # scalebench itself runs under torchrun
    assert launched(words, env) is None
