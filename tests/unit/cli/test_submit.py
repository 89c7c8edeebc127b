"""What would end a job as soon as it has waited in the queue is refused before it is submitted."""

import pytest
from click.testing import CliRunner

from scalebench.cli import cli

KUBERNETES = ("--kubernetes", "--image", "i")
SLURM = ("--slurm",)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


@pytest.mark.parametrize(
    ("command", "where", "told"),
    [
        ("ddq", SLURM, "Did you mean 'ddp'"),
        ("mine.py", SLURM, "no suite file mine.py"),
        ("--gpus 2 -- nowhere.py", SLURM, "no script nowhere.py"),
        ("ddp -k none-of-them", SLURM, "matches no case"),
        ("ddp --workload gtp", SLURM, "Did you mean 'gpt'"),
        ("ddp --gpus 2,4,8", SLURM, "8 ranks, and the job has 4"),
        ("ddp --gpus 3 --device cpu --batch-size 16", SLURM, "--batch-size 15 or 18"),
        ("ddp --only ddp.ddq.n2 --device cpu", SLURM, "no row"),
        ("ddp --gpus 8", KUBERNETES, "the job has 4"),
        ("ddp", (), "--slurm or --kubernetes or --jobset or --skypilot"),
        ("ddp", ("--slurm", "--gpu-type", "H100"), "--gpu-type is for --skypilot. Leave it out."),
        ("ddp", (*KUBERNETES, "--cpus-per-task", "2"), "--cpus-per-task is for --slurm."),
        ("ddp", ("--jobset", "--runtime", "r", "--image", "i"), "--runtime is for --kubernetes."),
        ("ddp", ("--skypilot", "--claim", "c"), "--claim is for --kubernetes or --jobset."),
        ("ddp", ("--skypilot",), "--skypilot needs --image"),
        ("ddp", ("--skypilot", "--image", "i", "--gpu-type", "H100"), "together"),
    ],
)
def test_what_cannot_run_or_no_cluster_of_this_kind_takes(command, where, told):
    words = ["submit", *where, "--nodes", "2", "--ranks-per-node", "2", "--dry-run", "--"]
    done = CliRunner().invoke(cli, [*words, "run", *command.split()])
    assert done.exit_code and told in f"{done.exception or ''}{done.output}"


@pytest.mark.parametrize("where", ["kubernetes", "jobset", "skypilot"])
def test_what_is_only_printed(where):
    words = ["submit", f"--{where}", "--image", "i", "--ranks-per-node", "2", "--", "run", "ddp"]
    done = CliRunner().invoke(cli, words)
    assert done.exit_code and "Add --dry-run" in str(done.exception)
