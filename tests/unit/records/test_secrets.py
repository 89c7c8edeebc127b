import os
import shlex

import pytest

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.machine import relevant_variables
from scalebench.records.secret import (
    MASK,
    WorldSecret,
    given_secret,
    names_a_secret,
    read_secret,
    secret_files,
    secret_values,
    without_secrets,
    words_without_secrets,
)
from scalebench.spec.world import Rendezvous
from tests.examples import cases

TOKENS = [
    *("sk-proj-0123456789abcdef", "ghp_0123456789abcdefABCDEF", "gho_0123456789abcdefABCDEF"),
    *("github_pat_11ABCDEFG0123456789", "hf_abcdefghijklmnopqrst", "xoxb-123456789012-abc"),
    *("AKIAIOSFODNN7EXAMPLE", "glpat-abcdefghij0123456789", "eyJhbGciOiJI.eyJzdWIiOiIx.c2ln"),
]
NAMES = [
    *("--api-key", "--apikey", "--api_key", "--apiKey", "-token", "--hf-token", "--key"),
    *("--wandb-key", "--password", "--db-passwd", "--client-secret", "--auth", "--auth-token"),
    *("--credential", "--aws-secret-access-key", "API_KEY", "HF_TOKEN", "WANDB_API_KEY"),
]
INNOCENT = [
    *("--max-tokens 512", "--tokenizer gpt2", "--num-key-value-heads 8", "--keyword x"),
    *("--max_tokens=512", "--tokens-per-step=4096", "--sort-key length", "--image-key jpg"),
    *("--pad-token x", "--use-auth-token true", "--auth --lr 0.1", "--author ann", "--keys a"),
    *("--model sk-learn-contrib", "--token-dim 64", "--secretary x", "--passes 3", "-k ddp"),
    *("--url https://example.org/a@b", "--remote ssh://git@example.org/x", "--lr=0.1"),
    *("the token is invalid", "no key was given, and a password is asked for", "a: b, c=d"),
    *("flops-per-token: 6", "Namespace(max_tokens=512, tokenizer='gpt2')", "at::add 12:30:45"),
]


@cases("name", *NAMES)
@cases("value", "hunter2", "it's a long one; with $igns")
def test_what_is_called_like_a_secret_is_masked(name, value):
    forms = [[f"{name}={value}"]] + ([[name, value]] if name.startswith("-") else [])
    for words in forms:
        masked = words_without_secrets(["train.py", *words, "--lr", "0.1"])
        assert masked[0] == "train.py" and masked[-2:] == ["--lr", "0.1"]
        assert value not in "".join(masked) and MASK in "".join(masked)
        assert secret_values(words) == {value}
        assert words_without_secrets(masked) == masked
    bare = name.lstrip("-")
    for text in (
        f"{name}={value.split()[0]} x",
        f"{{'{bare}': '{value.replace(chr(39), '')}', 'lr': 0.1}}",
        f'"{bare}": "{value}"',
    ):
        if bare == "key":  # a key of data, in texts
            continue
        masked = without_secrets(text)
        assert "hunter2" not in masked and "it" not in masked.replace("credit", ""), masked
        assert MASK in masked


@cases("token", *TOKENS)
def test_what_looks_like_a_token_is_masked_anywhere(token):
    for text in (token, f"--model {token} x", f"x={token}", f'"{token}"', f"see ({token})"):
        assert token not in without_secrets(text) and MASK in without_secrets(text)
    assert token not in shlex.join(words_without_secrets(["--lr", token]))


def test_who_a_url_is_asked_as_is_masked_and_the_rest_of_it_is_not():
    text = "--index-url=https://ann:hunter2@example.org:8080/a and https://t0ken@example.org"
    assert without_secrets(text) == (
        f"--index-url=https://{MASK}@example.org:8080/a and https://{MASK}@example.org"
    )
    assert "x" not in without_secrets("Authorization: Bearer xxxx").replace(MASK, "")


@cases("text", *INNOCENT)
def test_what_is_innocent_stays(text):
    assert without_secrets(text) == text
    assert words_without_secrets(shlex.split(text)) == shlex.split(text)
    assert not secret_values(shlex.split(text))


def test_no_secret_is_among_the_variables_of_a_fingerprint():
    variables = dict.fromkeys(["NCCL_AUTH_KEY", "TORCH_HUB_PASSWORD", "TORCH_API_KEY"], "hunter2")
    assert relevant_variables({**variables, "NCCL_DEBUG": "INFO", "NCCL_NET": TOKENS[0]}) == {
        "NCCL_DEBUG": "INFO",
        "NCCL_NET": MASK,
    }
    assert not names_a_secret("TORCH_NCCL_ASYNC_ERROR_HANDLING")


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
