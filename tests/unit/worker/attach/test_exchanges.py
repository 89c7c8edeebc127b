"""What the ranks exchanged while steps were watched: one rank, and no process."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from scalebench.spec import StepPlan
from scalebench.worker.attach.hooks import Patches
from scalebench.worker.attach.schedule import FIRST_LOOK
from scalebench.worker.attach.traffic import TrafficWatch
from scalebench.worker.attach.watch import Watch


@pytest.fixture(params=["gloo", None, "cpu:gloo"])
def group(request):
    dist.init_process_group(request.param, store=dist.HashStore(), rank=0, world_size=1)
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def exchanged(folder, num_steps, each_step, at_the_end=lambda: None):
    """What a rank stores after so many steps."""
    request = {
        "rank": 0, "world_size": 2, "device": "cpu", "folder": str(folder), "store": None,
        "limit_s": 1.0, "plan": StepPlan(steps=1000).model_dump(), "to_the_end": False,
    }  # fmt: skip
    kept = {}
    watch = Watch(request, kept.update)
    hooks = Patches()
    watch.traffic.install(hooks.put)
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters())
    for _ in range(num_steps):
        watch.backward()
        each_step()
        watch.optimizer_called(optimizer)
    at_the_end()
    watch.store()
    hooks.remove()
    if dist.is_initialized():
        all_reduce()  # as it was before
    return kept["traffic"]


def all_reduce():
    dist.all_reduce(torch.ones(1))


def test_operations_are_counted_from_the_first_look_on(group, tmp_path):
    dist.barrier()
    assert exchanged(tmp_path, FIRST_LOOK + 5, lambda: None) == [0, 0, 0]
    assert exchanged(tmp_path, FIRST_LOOK + 5, all_reduce) == [5, 5, 5 * 4]


def test_other_groups_count_as_well(group, tmp_path):
    other = dist.new_group([0])
    told = exchanged(tmp_path, FIRST_LOOK + 2, lambda: dist.barrier(group=other))
    assert told[0] == 2


def test_what_is_not_known_is_not_zero(group, tmp_path):
    assert exchanged(tmp_path, FIRST_LOOK - 1, all_reduce) is None
    told = exchanged(tmp_path, FIRST_LOOK + 1, all_reduce, dist.destroy_process_group)
    assert told is None


def test_a_backend_that_does_not_count_says_nothing(group, monkeypatch):
    assert TrafficWatch().so_far() is not None

    class Silent:
        _device_types = (torch.device("cpu"),)

        def _get_backend(self, device):
            raise RuntimeError("this backend has no sequence numbers")

    monkeypatch.setitem(dist.distributed_c10d._world.pg_map, Silent(), ("own", None))
    assert TrafficWatch().so_far() is None
