"""A task for SkyPilot, by its YAML reference: on every node torchrun starts the ranks."""

import json
import shlex

from scalebench.errors import UsageError
from scalebench.launch.submission.request import JobRequest
from scalebench.records.storage.secret import VARIABLE, new_secret

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
