"""Manifests for Kubernetes: an Indexed Job, a JobSet, or a TrainJob of Kubeflow Trainer.

In all, every pod runs torchrun, which starts the ranks of that node. Sources: the batch/v1 API of
Kubernetes, jobset.x-k8s.io/v1alpha2, and trainer.kubeflow.org/v1alpha1, whose torch runtimes tell
torchrun by ``PET_`` variables how many nodes there are and where they meet.
"""

import json
from typing import Any

from scalebench.errors import UsageError
from scalebench.launch.submission.request import JobRequest
from scalebench.records.storage.secret import VARIABLE, new_secret

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
