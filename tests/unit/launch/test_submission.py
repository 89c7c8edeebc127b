import itertools
import json
import os
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kubeflow_trainer_api.models.io_k8s_api_batch_v1_job import IoK8sApiBatchV1Job
from kubeflow_trainer_api.models.io_k8s_api_core_v1_secret import IoK8sApiCoreV1Secret
from kubeflow_trainer_api.models.io_k8s_api_core_v1_service import IoK8sApiCoreV1Service
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from kubeflow_trainer_api.models.trainer_v1alpha1_train_job import TrainerV1alpha1TrainJob

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.launch import submission
from scalebench.launch.submission import JobRequest, batch_script, indexed_job, job_set
from scalebench.records.secret import VARIABLE, given_secret
from tests.conftest import ran
from tests.examples import cases

COMMAND = ("run", "ddp", "--gpus", "2,4", "-k", "not (a or b)")
NASTY = "$(touch pwned); `id` '\" \\ ${HOME} #x"


def launched(script):
    srun, *words = shlex.split(script.splitlines()[-1])
    assert srun == "srun"
    return list(itertools.dropwhile(lambda word: word.startswith("--"), words))


def request(*extra, gpus=0):
    return JobRequest("bench", 2, 4, gpus, (*COMMAND, *extra))


words = st.text(st.characters(exclude_categories=("C", "Z")), min_size=1).filter(
    lambda text: not text.startswith("--launcher") and text.isprintable()
)


@given(words)
def test_no_word_of_the_command_is_more_than_a_word_to_the_shell(word):
    script = batch_script(request(word), {}, "/opt/my python")
    assert launched(script) == ["/opt/my python", "-m", "scalebench", *COMMAND, word]


@pytest.fixture
def shell(tmp_path):
    """Run a script with programs of these names and texts before those of PATH."""

    def run(script, programs, **variables):
        for name, text in programs.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
            (tmp_path / name).chmod(0o700)
        there = {"PATH": f"{tmp_path}:{os.environ['PATH']}", **variables}
        return ran(["bash", "-c", script], cwd=tmp_path, env=there, code=0).stdout

    return run


PRINT = 'printf "%s\\n" "$@"'


def test_a_real_shell_starts_exactly_the_command(shell, tmp_path):
    script = batch_script(request("--out", NASTY), {}, str(tmp_path / "a python"))
    srun = 'while [[ $1 == --* ]]; do shift; done\nexec "$@"'
    told = shell(script, {"a python": PRINT, "srun": srun})
    assert told.splitlines() == ["-m", "scalebench", *COMMAND, "--out", NASTY]
    assert not (tmp_path / "pwned").exists()


def test_a_users_script_keeps_its_words_behind_the_dashes():
    command = ("run", "--gpus", "2,4", "--", "train.py", "--launcher", "none")
    asked = JobRequest("bench", 2, 4, 0, command)
    assert launched(batch_script(asked, {}, "python"))[-len(command) :] == list(command)
    assert pod_command(indexed_job(asked, "image", None)[-1])[-len(command) :] == list(command)


@cases("name", "", "a/b", "..", "A", "-a", "a-", "x" * 60, "a b")
def test_names_that_are_none(name):
    with pytest.raises(UsageError, match="--name"):
        JobRequest(name, 1, 1, 0, COMMAND)


def test_only_runs_are_submitted():
    for command in ((), ("show",), ("run", "--launcher", "lab"), ("run", "a\nb")):
        with pytest.raises(UsageError):
            JobRequest("a", 1, 1, 0, command)


def test_a_script_that_is_there_is_not_overwritten(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    there = tmp_path / "bench.sbatch"
    with pytest.raises(EnvironmentUnfit, match="no sbatch"):
        submission.submit("mine", there)
    with pytest.raises(UsageError, match="already"):
        submission.submit("yours", there)
    assert there.read_text() == "mine" and there.stat().st_mode & 0o077 == 0


def pod_command(job):
    (container,) = job["spec"]["template"]["spec"]["containers"]
    return list(container["command"])


def expanded(text, variables):
    """What Kubernetes makes of a word: third_party/forked/golang/expansion/expand.go."""
    done, place = "", 0
    while place < len(text):
        here, after = text[place], text[place + 1 : place + 2]
        place += 1
        if here != "$" or not after:
            done += here
        elif after == "$":
            done, place = done + "$", place + 1
        elif after == "(" and ")" in text[place:]:
            name, _, _ = text[place + 1 :].partition(")")
            done += variables.get(name, f"$({name})")
            place += len(name) + 2
        else:
            done, place = done + "$" + after, place + 1
    return done


@given(st.lists(words | st.text("$()A{}", min_size=1)))
def test_kubernetes_starts_exactly_the_command(extra):
    run = JobRequest("bench", 2, 4, 0, ("run", "--", "train.py", *extra))
    *_, job = indexed_job(run, "image", None)
    *_, train = submission.train_job(run, "image", "runtime")
    *_, jobset = job_set(run, "image", None)
    (replicated,) = jobset["spec"]["replicatedJobs"]
    assert pod_command(replicated["template"]) == [
        word.replace("bench-0.", "bench-ranks-0-0.") for word in pod_command(job)
    ]
    variables = {"NODE_RANK": "1", "A": "changed", "": "changed"}
    for words, torchrun in (
        (pod_command(job), ["--node-rank=1"]),
        (train["spec"]["trainer"]["args"], ["-m"]),
    ):
        read = [expanded(word, variables) for word in words]
        assert read[-len(run.command) :] == list(run.command)
        assert read[: -len(run.command)].count(*torchrun) == 1
    assert json.loads(submission.as_list([job, train]))["items"] == [job, train]


@cases("claim", None, "runs")
@cases("gpus", 0, 8)
def test_an_indexed_job_is_as_the_published_schema_has_it(claim, gpus):
    secret, service, job = indexed_job(request(NASTY, gpus=gpus), "registry/image:1", claim)
    kinds = {IoK8sApiBatchV1Job: job, IoK8sApiCoreV1Service: service, IoK8sApiCoreV1Secret: secret}
    for kind, one in kinds.items():  # what a schema does not have is missing when written again
        assert kind.from_dict(one).to_dict() == one
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    has_secret(container["env"], secret)
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == 2
    assert "--master-addr=bench-0.bench" in container["command"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == job["spec"]["template"]["metadata"]["labels"]
    assert ("resources" in container) is bool(gpus)


@cases("claim", None, "runs")
def test_a_jobset_is_as_the_published_schema_has_it(claim):
    secret, jobset = job_set(request(NASTY, gpus=8), "registry/image:1", claim)
    assert JobsetV1alpha2JobSet.from_dict(jobset).to_dict() == jobset
    (replicated,) = jobset["spec"]["replicatedJobs"]
    # JobSet names pods <set>-<job>-<number of the job>-<number of the pod>, below its own Service.
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    assert f"--master-addr=bench-{replicated['name']}-0-0.bench" in container["command"]
    has_secret(container["env"], secret)
    (_, _, job) = indexed_job(request(NASTY, gpus=8), "registry/image:1", claim)
    assert replicated["template"]["spec"].keys() == job["spec"].keys()
    with pytest.raises(UsageError, match="at most 4"):
        job_set(JobRequest("a" * 52, 1, 1, 0, COMMAND), "i", None)


def test_every_node_of_skypilot_starts_exactly_the_command(shell):
    asked = request("--out", NASTY, gpus=8)
    whole = json.loads(submission.task(asked, "registry/image:1", "H100"))
    assert (whole["num_nodes"], whole["resources"]["accelerators"]) == (2, "H100:8")
    (secret,) = whole["secrets"].values()
    assert given_secret({VARIABLE: secret}) == secret and secret not in whole["run"]
    told = {"SKYPILOT_NODE_RANK": "1", "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2"}
    own, _, command = shell(whole["run"], {"torchrun": PRINT}, **told).partition("-m\nscalebench\n")
    assert command.splitlines() == [*COMMAND, "--out", NASTY]
    assert {"--node-rank=1", "--master-addr=10.0.0.1"} <= set(own.splitlines())
    for gpus, kind in ((8, None), (0, "H100")):
        with pytest.raises(UsageError, match="together"):
            submission.task(request(gpus=gpus), "i", kind)


def has_secret(environment, secret):
    (reference,) = (each["valueFrom"] for each in environment if each["name"] == VARIABLE)
    held = secret["stringData"][reference["secretKeyRef"]["key"]]
    assert reference["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert given_secret({VARIABLE: held}) == held
    assert held not in str(environment) + str(indexed_job(request(), "i", None)[0])


def test_a_train_job_is_as_the_published_schema_has_it():
    (secret, job) = submission.train_job(request(gpus=4), "image", "torch-distributed")
    assert TrainerV1alpha1TrainJob.from_dict(job).to_dict() == job
    trainer = job["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (2, 4)
    has_secret(trainer["env"], secret)
    assert trainer["args"][:4] == ["-m", "scalebench", "run", "ddp"]
