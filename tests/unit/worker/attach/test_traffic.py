"""What Python asks process groups for is counted, by whatever name torch has for it."""

import pytest
import torch
import torch.distributed as dist

from scalebench.worker.attach.traffic import TrafficWatch


@pytest.fixture
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


OF_PARTS = [dist.all_to_all_single]
OTHERS = [dist.all_gather_into_tensor, dist.reduce_scatter_tensor]


@pytest.mark.filterwarnings("ignore:.*deprecated")  # two of the names for users, from torch 2.13 on
@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("ask", [*OF_PARTS, *OTHERS])
def test_operations_that_torch_has_renamed_are_counted(ask, monkeypatch):
    watch = TrafficWatch()
    watch.install(monkeypatch.setattr)
    ask(torch.zeros(4), torch.ones(4))
    seen = watch.so_far()
    assert (seen.called, seen.called_bytes) == (1, 16)
    assert watch.sends_parts is (ask in OF_PARTS)


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("ask", [dist.barrier, dist.monitored_barrier])
def test_a_barrier_holds_no_gradients(ask, monkeypatch):
    barrier = dist.ProcessGroup.barrier

    def of_two_ranks(group, *_, **__):
        """As of two ranks: a message to the other, and one from it."""
        barrier(group, dist.BarrierOptions()).wait()
        barrier(group, dist.BarrierOptions()).wait()

    monkeypatch.setattr(dist.ProcessGroup, "monitored_barrier", of_two_ranks)
    watch = TrafficWatch()
    watch.install(monkeypatch.setattr)
    ask()
    seen = watch.so_far()
    assert seen.operations == seen.called == (2 if ask is dist.monitored_barrier else 1)
    assert seen.called_bytes == 0
