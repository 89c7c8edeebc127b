import shlex

import pytest

from tests.examples import cases

DEEP = 5000
NO_ROOM = "--memory-limit 4GB"
KUBERNETES = "--kubernetes --image i"
H100 = "--gpus 8 --workload gpt-7b --gpu-type h100 --mfu 0.45 --margin 0.1"
OF_H100 = "--gpus 8 --gpu-type h100"
REFUSED = {
    "": {
        "rnu": "Did you mean 'run'? Valid: baseline,",
        "show --schedule gpipe -p 4096 -m 65536": "at most 131,072",
        "import a.log:gpus=1 b.log:gpu=2": "did you mean gpus=2?",
        "help efficiensy": "There is no topic 'efficiensy'. Did you mean 'efficiency'?",
    },
    "run": {
        "nowhere.py": "no suite file nowhere.py",
        "mine.py": "mine.py does not define SUITE",
        "--frobnicate": "No such option '--frobnicate'",
        "ddp --launcher slurm": "srun scalebench run",
        "ddp --device cuda,cpu": "all ranks of a launch are on devices of one kind",
        f"ddp --dry-run -k {'(' * DEEP!r}": "nested too deeply",
        f"ddp --launcher lab --link {'9' * 400}mbit": "50mbit",
        f"ddp --steps {'9' * DEEP}": "--steps",
        "ddp --gpus 1-999999999999": "1,2,4",
        "ddp --memory-limit 1MB": "is for --max-batch",
        "ddp --max-batch --dry-run": "finds the largest batch by training",
        **{
            f"--samples-per-step {text!r} -- train.py": "not a number of samples"
            for text in ("9**9**9", "9" * 400, "1e308*1e308", "(" * DEEP, "+".join("1" * DEEP))
        },
    },
    "submit --nodes 2 --ranks-per-node 2 --dry-run": {
        "--slurm -- run ddq": "Did you mean 'ddp'",
        "--slurm -- run other.py": "no suite file other.py",
        "--slurm -- run --gpus 2 -- nowhere.py": "no script nowhere.py",
        "--slurm -- run ddp -k none-of-them": "matches no case",
        "--slurm -- run ddp --workload gtp": "Did you mean 'gpt'",
        "--slurm -- run ddp --gpus 2,4,8": "8 ranks, and the job has 4",
        "--slurm -- run ddp --gpus 3 --device cpu --batch-size 16": "--batch-size 15 or 18",
        "--slurm -- run ddp --only ddp.ddq.n2 --device cpu": "no row",
        f"{KUBERNETES} -- run ddp --gpus 8": "the job has 4",
        "-- run ddp": "--slurm or --kubernetes or --jobset or --skypilot",
        "--slurm --gpu-type H100 -- run ddp": "--gpu-type is for --skypilot. Leave it out.",
        f"{KUBERNETES} --cpus-per-task 2 -- run ddp": "--cpus-per-task is for --slurm.",
        "--jobset --runtime r --image i -- run ddp": "--runtime is for --kubernetes.",
        "--skypilot --claim c -- run ddp": "--claim is for --kubernetes or --jobset.",
        "--skypilot -- run ddp": "--skypilot needs --image",
        "--skypilot --image i --gpu-type H100 -- run ddp": "together",
    },
    "submit --image i --ranks-per-node 2": {
        f"--{where} -- run ddp": "Add --dry-run" for where in ("kubernetes", "jobset", "skypilot")
    },
    "search": {
        f"{H100} --link nvlink9": "Did you mean",
        f"{H100} --link pcie4+pcie5+pcie3": "two joined by +",
        f"{H100} --links dgx-h100 --link pcie4": "one of them",
        f"{H100} --measure 3": "not here",
        f"{H100} {NO_ROOM}": "--memory-limit 15GB, or --gpus 32",
        f"{H100} --gpus 37": "Give --gpus 36, or another --batch-size",
        f"{H100} --measured rows.csv": "Give one of them",
        f"{OF_H100} --options lunch=eager": "launch",
        f"{OF_H100} --options launch=late": "'compiled'",
        f"{OF_H100} --workload cnn-8 --mfu 0.4": "gpt-7b",
        "--gpus 8 --gpu-type mi300x --mfu 0.4": "--link",
        f"{OF_H100} --workload m:w --mfu 0.4": "measured",
        "--gpus 2 --cpus-per-rank 0.2": "--launcher lab",
        "--gpus 2 --suite /nowhere/best.py": "--suite /nowhere/best.py: there is no",
        "--gpus 8 --gpu-type 'NVIDIA H100-PCIe'": "Did you mean 'h100'?",
        f"{OF_H100} --workload hf:e.json": "has no model_type",
        "--gpus 2 --html /nowhere/best.html": "there is no folder /nowhere",
        "--gpus 8 --memory-limit 80": "80 is 80 bytes, less than any rank needs. Did you mean 8",
        "--gpus 8 --memory-limit 80kB": "80kB is 80,000 bytes",
        "--gpus 8 --mfu 45": "not a fraction between 0 and 1",
    },
    "gate": {
        "--interleave -- ddp": "--base-python",
        "--interleave --base-dir . --baseline x": "leave out --baseline",
        "--base-dir . x": "for --interleave",
        "x y": "one run",
        "--repeat-until-decided 5m x": "for --interleave",
        "--interleave --base-dir . -- ddp --repeats 9": "--rounds",
    },
    "calibrate": {
        "--max-bytes much": "not a size",
        "--max-bytes 8": "from 64 B",
        "--gpus 1,2": "2 ranks or more",
        "--world-size 4": "--import",
        "--link 50mbit": "--launcher lab",
        "--op all_reduze": "all_reduce",
        "--dtype fp8": "bfloat16",
        "--algorithms rings": "ring",
    },
}
ALL = {f"{first} {rest}": said for first, of in REFUSED.items() for rest, said in of.items()}


@pytest.fixture(autouse=True)
def here(project, monkeypatch):
    monkeypatch.setattr("scalebench.launch.local.LocalLauncher.survey", lambda *_: {"devices": []})
    (project / "train.py").touch()
    (project / "mine.py").write_text("SUITE = None")
    (project / "e.json").write_text("{}")


@cases("typed", *ALL, ids=lambda typed: typed[:60])
def test_what_cannot_be_is_refused_in_one_line(in_process, typed):
    done = in_process(*shlex.split(typed))
    assert done.returncode == (5 if NO_ROOM in typed else 2)
    assert len(done.stderr.splitlines()) == 1 and ALL[typed] in done.stderr, done.stderr
