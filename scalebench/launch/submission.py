"""The launchers that ``--launcher`` takes, and jobs written for a scheduler to launch.

Nothing heavy is imported before a launcher is started: the command line reads this table to write
its help.

Jobs for a cluster's own queue, as text: Slurm's batch script, SkyPilot's task, Kubernetes.

For Kubernetes an Indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer. In all, every pod runs
torchrun, which starts the ranks of that node. Sources: the batch/v1 API of Kubernetes,
jobset.x-k8s.io/v1alpha2, and trainer.kubeflow.org/v1alpha1, whose torch runtimes tell torchrun by
``PET_`` variables how many nodes there are and where they meet; SkyPilot's YAML reference.
"""

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalebench.errors import EnvironmentUnfit, UsageError
from scalebench.records.secret import VARIABLE, new_secret

if TYPE_CHECKING:
    from scalebench.launch.base import Launcher

_NAME = re.compile(r"[a-z]([a-z0-9-]{0,50}[a-z0-9])?")
"""What Kubernetes takes for the name of a job whose pods get longer names, and Slurm as well."""


@dataclass(frozen=True)
class Offer:
    """A launcher that you can ask for.

    Attributes:
        about: One line for ``scalebench list``.
        start: Makes the launcher; raises EnvironmentUnfit where it cannot run.
        why_not: Says why it cannot run here; None: it can.
    """

    about: str
    start: Callable[[], "Launcher"]
    why_not: Callable[[], str | None] = lambda: None


def _start_local() -> "Launcher":
    from scalebench.launch.local import LocalLauncher

    return LocalLauncher()


def _why_no_lab() -> str | None:
    from scalebench.launch.lab import try_lab

    return try_lab().network


LAUNCHERS: dict[str, Offer] = {
    "local": Offer(
        "processes on this machine, forked from one that has torch imported", _start_local
    ),
    "lab": Offer(
        "virtual hosts on this machine: links of a known rate, shares of the CPU",
        _start_local,  # which the plan then moves to the virtual hosts
        _why_no_lab,
    ),
}


@dataclass(frozen=True)
class JobRequest:
    """A run of scalebench on a cluster.

    Attributes:
        gpus_per_node: On each; 0: none are asked for.
        command: What follows ``scalebench`` on the command line.
    """

    name: str
    nodes: int
    ranks_per_node: int
    gpus_per_node: int
    command: tuple[str, ...]

    def __post_init__(self) -> None:
        """Refuse what no cluster takes; raises UsageError."""
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"--name {self.name!r} is not a valid job name. Give at most 52 lower-case "
                "letters, digits and dashes; start with a letter and do not end with a dash."
            )
        if self.command[:1] != ("run",):
            raise UsageError(
                f"Only a run can be submitted, not {' '.join(self.command) or 'nothing'!r}. Write "
                "the command after two dashes: scalebench submit ... -- run ddp --gpus 2,4."
            )
        unprintable = [part for part in self.command if not part.isprintable()]
        if unprintable:
            raise UsageError(
                f"{unprintable[0]!r} contains characters that a script cannot show. Use printable "
                "characters."
            )
        if any(part.partition("=")[0] == "--launcher" for part in self.split()[0]):
            raise UsageError("The cluster places the ranks. Leave --launcher out of the command.")

    def split(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return scalebench's own words, and the user's script with the dashes before it."""
        place = self.command.index("--") if "--" in self.command else len(self.command)
        return self.command[:place], self.command[place:]


SUBMIT_LIMIT_S = 60
CPUS = "cpus-per-task"
_VALUE = re.compile(r"[A-Za-z0-9_.,:@+*=&|%\[\]/-]+")
"""What options of sbatch hold; no blank, quote or anything else that a shell would act on."""


def batch_script(request: JobRequest, options: Mapping[str, str], python: str) -> str:
    """Return the script of a job in which srun starts one process of scalebench for each rank.

    ``options`` of sbatch have no dashes; ``python`` is the interpreter, as the nodes find it.

    Raises:
        UsageError: An option's value is none.
    """
    settings = {
        "job-name": request.name,
        "nodes": str(request.nodes),
        "ntasks-per-node": str(request.ranks_per_node),
        **({"gpus-per-node": str(request.gpus_per_node)} if request.gpus_per_node else {}),
        "output": f"{request.name}-%j.out",
        **options,
    }
    for name, value in settings.items():
        if not _VALUE.fullmatch(value):
            raise UsageError(f"--{name} {value!r}: sbatch takes letters, digits and _.,:@+=/-.")
    own, script = request.split()
    # Unlike sbatch's other options, srun does not take the processors of a task from the job.
    cpus = [f"--cpus-per-task={options[CPUS]}"] if CPUS in options else []
    srun = ["srun", "--export=ALL", "--input=none", "--kill-on-bad-exit=1", *cpus]
    command = [*srun, python, "-m", "scalebench", *own, *script]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH --{name}={value}" for name, value in settings.items()),
        "set -eu",
        "# What the ranks sign their messages with.",
        f"export {VARIABLE}=$(od -An -N32 -tx1 /dev/urandom | tr -d ' \\n')",
        "# Each task forks a fresh rank for every launch: a rank that dies fails only its row.",
        shlex.join(command),
    ]
    return "\n".join(lines) + "\n"


def submit(script: str, path: Path) -> str:
    """Write a batch script and hand it to sbatch; return what that says, the job's number.

    Raises:
        UsageError: There is a file of that name already.
        EnvironmentUnfit: sbatch is missing, or refuses.
    """
    try:
        path.touch(mode=0o600, exist_ok=False)  # the words of a script may hold a secret
        path.write_text(script, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{path} already exists. Give the job another --name.") from None
    try:
        done = subprocess.run(
            ["sbatch", "--parsable", str(path)],
            capture_output=True,
            text=True,
            timeout=SUBMIT_LIMIT_S,
        )
    except FileNotFoundError:
        raise EnvironmentUnfit(
            f"There is no sbatch on the PATH. {path} is written: submit it on a machine that has "
            "sbatch."
        ) from None
    except subprocess.TimeoutExpired:
        raise EnvironmentUnfit(f"sbatch did not answer within {SUBMIT_LIMIT_S} s.") from None
    if done.returncode != 0:
        raise EnvironmentUnfit(
            f"sbatch rejected {path}: {done.stderr.strip() or 'no reason given'}"
        )
    return done.stdout.strip()


FIRST_NODE = '"$(echo "$SKYPILOT_NODE_IPS" | head -n1)"'


def task(request: JobRequest, image: str, gpu_type: str | None) -> str:
    """Return a task in JSON, which SkyPilot reads as YAML, with a secret drawn for it.

    ``gpu_type``: as SkyPilot names it, such as H100; None: on CPUs.

    Raises:
        UsageError: Either the GPUs of a node or their type are missing.
    """
    if bool(request.gpus_per_node) != bool(gpu_type):
        raise UsageError("SkyPilot needs --gpus-per-node 8 and --gpu-type H100 together.")
    resources = {"image_id": f"docker:{image}"}
    if gpu_type:
        resources["accelerators"] = f"{gpu_type}:{request.gpus_per_node}"
    torchrun = (
        f"torchrun --nnodes={request.nodes} --nproc-per-node={request.ranks_per_node} "
        f'--node-rank="$SKYPILOT_NODE_RANK" --master-addr={FIRST_NODE} --master-port=29500'
    )
    whole = {
        "name": request.name,
        "num_nodes": request.nodes,
        "resources": resources,
        "secrets": {VARIABLE: new_secret()},
        "run": f"{torchrun} -m scalebench {shlex.join(request.command)}\n",
    }
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


PORT = 29500
CONTAINER = "scalebench"
RUNS = "/runs"
INDEX = "NODE_RANK"
RANKS = "ranks"
LONGEST_JOBSET = 63 - len(f"-{RANKS}-0-9999-suffix")
"""Characters of a name to which a JobSet adds Job, pod and a random suffix."""
GPU = "nvidia.com/gpu"
SHARED_MEMORY = {"name": "shm", "emptyDir": {"medium": "Memory"}}

Manifest = dict[str, Any]


def indexed_job(request: JobRequest, image: str, claim: str | None) -> list[Manifest]:
    """Return the secret of the ranks, a Service to find the first pod, a Job with a pod per node.

    ``claim``: of a volume for the run; None: it is lost with the pod, but for its output.
    """
    labels = {"app.kubernetes.io/name": CONTAINER, "app.kubernetes.io/instance": request.name}
    spec = _job_spec(request, image, claim, f"{request.name}-0.{request.name}")
    spec["template"]["metadata"] = {"labels": labels}
    spec["template"]["spec"]["subdomain"] = request.name
    service: Manifest = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": request.name, "labels": labels},
        "spec": {
            "clusterIP": "None",
            "selector": labels,
            "publishNotReadyAddresses": True,
            "ports": [{"name": "rendezvous", "port": PORT, "protocol": "TCP"}],
        },
    }
    job: Manifest = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": request.name, "labels": labels},
        "spec": spec,
    }
    return [_secret(request), service, job]


def job_set(request: JobRequest, image: str, claim: str | None) -> list[Manifest]:
    """Return the secret of the ranks, and a JobSet of one Job, which makes the Service itself.

    Raises:
        UsageError: The names of its pods would be longer than 63 characters.
    """
    if len(request.name) > LONGEST_JOBSET:
        raise UsageError(f"--jobset takes a --name of at most {LONGEST_JOBSET} characters.")
    spec = _job_spec(request, image, claim, f"{request.name}-{RANKS}-0-0.{request.name}")
    jobs = [{"name": RANKS, "template": {"spec": spec}}]
    meta = {"name": request.name}
    api = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet"}
    return [_secret(request), {**api, "metadata": meta, "spec": {"replicatedJobs": jobs}}]


def _job_spec(request: JobRequest, image: str, claim: str | None, first: str) -> Manifest:
    """Return what a Job with a pod for each node does; ``first`` is the name of the first pod."""
    torchrun = [
        *("torchrun", f"--nnodes={request.nodes}", f"--nproc-per-node={request.ranks_per_node}"),
        *(f"--node-rank=$({INDEX})", f"--master-addr={first}", f"--master-port={PORT}"),
    ]
    index = {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}
    container: Manifest = {
        "name": CONTAINER,
        "image": image,
        "command": [*torchrun, *_run(request)],
        "env": [{"name": INDEX, "valueFrom": {"fieldRef": index}}, _from_secret(request)],
        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
        **_resources(request, "resources"),
    }
    volumes: list[Manifest] = [SHARED_MEMORY]
    if claim is not None:
        volumes.append({"name": "runs", "persistentVolumeClaim": {"claimName": claim}})
        container["volumeMounts"].append({"name": "runs", "mountPath": RUNS})
        container["workingDir"] = RUNS
    pod = {"restartPolicy": "Never", "containers": [container], "volumes": volumes}
    return {
        "completions": request.nodes,
        "parallelism": request.nodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "template": {"spec": pod},
    }


def train_job(request: JobRequest, image: str, runtime: str) -> list[Manifest]:
    """Return the secret of the ranks, and a TrainJob.

    ``runtime``: name of a ClusterTrainingRuntime for torch.
    """
    return [
        _secret(request),
        {
            "apiVersion": "trainer.kubeflow.org/v1alpha1",
            "kind": "TrainJob",
            "metadata": {"name": request.name},
            "spec": {
                "runtimeRef": {"name": runtime},
                "trainer": {
                    "image": image,
                    "command": ["torchrun"],
                    "args": _run(request),
                    "env": [_from_secret(request)],
                    "numNodes": request.nodes,
                    "numProcPerNode": request.ranks_per_node,
                    **_resources(request, "resourcesPerNode"),
                },
            },
        },
    ]


def _secret(request: JobRequest) -> Manifest:
    """Return the object that holds the secret of the ranks, drawn for this job."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": request.name},
        "stringData": {VARIABLE: new_secret()},
    }


def _from_secret(request: JobRequest) -> Manifest:
    reference = {"name": request.name, "key": VARIABLE}
    return {"name": VARIABLE, "valueFrom": {"secretKeyRef": reference}}


def _run(request: JobRequest) -> list[str]:
    """Return the command for torchrun. Kubernetes reads ``$$`` as ``$``, and ``$(`` as a variable.

    Source: third_party/forked/golang/expansion of Kubernetes, which reads commands and arguments.
    """
    return ["-m", "scalebench", *(part.replace("$", "$$") for part in request.command)]


def _resources(request: JobRequest, field: str) -> Manifest:
    if not request.gpus_per_node:
        return {}
    return {field: {"limits": {GPU: str(request.gpus_per_node)}}}


def as_list(manifests: list[Manifest]) -> str:
    """Write manifests as one list in JSON, which ``kubectl`` takes as it takes YAML."""
    whole = {"apiVersion": "v1", "kind": "List", "items": manifests}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
