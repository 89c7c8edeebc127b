import inspect
import time
from datetime import timedelta
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader

from scalebench.worker.attach import instruments, timing
from scalebench.worker.attach.checks.data import divided_by
from scalebench.worker.attach.checks.replicas import Replicas
from scalebench.worker.attach.facts import bases_of
from scalebench.worker.attach.instruments import HostWaits
from scalebench.worker.attach.timing import Agreement, Block, Schedule, store_at
from scalebench.worker.attach.traffic import ScriptProblem, TrafficWatch, check_torch
from scalebench.worker.process.store_queue import listen, serve_on
from tests.examples import cases
from tests.processes import wait_for


@cases("version", "1.13.1", "2.3.1+cu121")
def test_versions_that_are_too_old(version):
    with pytest.raises(ScriptProblem, match=r"2\.4 or newer is needed"):
        check_torch(version)


def test_a_class_of_the_users_is_not_torchs_of_the_same_name():
    mine = type("DistributedDataParallel", (torch.nn.Module,), {"__module__": "mine"})
    assert bases_of(mine) == {"Module"}


def test_experts_of_deepspeed_are_compared_with_their_copies_alone(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_process_group_ranks", lambda group: group)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 4)
    kind = type("DeepSpeedEngine", (torch.nn.Module,), {"__module__": "deepspeed.runtime.engine"})
    engine = kind()
    engine.module = torch.nn.ModuleDict({"gate": torch.nn.Linear(2, 2, bias=False)})
    engine.module["expert"] = torch.nn.Linear(2, 2, bias=False)
    expert = engine.module["expert"].weight
    expert.allreduce, expert.group_name = False, "ep_size_2"
    engine.data_parallel_group = [0, 1, 2, 3]
    engine.expert_data_parallel_group = {"ep_size_2": [0, 2]}
    replicas = Replicas("cpu")
    replicas.look(0, [], [engine])
    held = [["gate.weight", None, False], ["expert.weight", (0, 2), False]]
    assert replicas.noted()["held"] == held


@cases("factor", float("inf"), float("nan"))
def test_a_loss_that_is_multiplied_by_no_number_ends_no_check(factor):
    loss = torch.ones(4, requires_grad=True).mean() * factor
    assert divided_by(loss) == (1.0, None)


@pytest.mark.filterwarnings("ignore:.*deprecated")  # two of the names for users, from torch 2.13 on
@pytest.mark.usefixtures("group_of_one")
@cases("ask", dist.all_to_all_single, dist.all_gather_into_tensor, dist.reduce_scatter_tensor)
def test_operations_that_torch_has_renamed_are_counted(ask, monkeypatch):
    watch = TrafficWatch()
    watch.install(monkeypatch.setattr)
    ask(torch.zeros(4), torch.ones(4))
    assert (watch.so_far().called, watch.so_far().called_bytes) == (1, 16)
    assert watch.sends_parts is (ask is dist.all_to_all_single)


@pytest.mark.usefixtures("group_of_one")
@cases("ask", dist.barrier, dist.monitored_barrier)
def test_a_barrier_holds_no_gradients(ask, monkeypatch):
    barrier = dist.ProcessGroup.barrier

    def of_two_ranks(group, *_, **__):
        for _ in "to the other", "from it":
            barrier(group, dist.BarrierOptions()).wait()

    monkeypatch.setattr(dist.ProcessGroup, "monitored_barrier", of_two_ranks)
    watch = TrafficWatch()
    watch.install(monkeypatch.setattr)
    ask()
    seen = watch.so_far()
    assert seen.operations == seen.called == (2 if ask is dist.monitored_barrier else 1)
    assert seen.called_bytes == 0


@pytest.fixture(autouse=True)
def never_compiled(monkeypatch):
    """Other tests of this process may have used torch.compile."""
    monkeypatch.setattr(instruments, "_compiles", lambda: False)


def test_calls_are_counted_where_they_stand():
    waits = HostWaits("cpu")
    torch.ones(1).item()
    waits.begin()
    next(iter(DataLoader(range(4), collate_fn=lambda batch: torch.ones(1).item())))
    line = inspect.currentframe().f_lineno + 2
    for _ in range(3):
        torch.ones(1).item()
        if torch.ones(1) > 0:
            torch.ones(2).cpu()
    waits.end()
    torch.ones(1).item()
    found = waits.found(3)
    assert (found["calls"], found["steps"]) == (9, 3)
    assert [(p["line"], p["call"], p["calls"]) for p in found["places"]] == [
        (line, ".item()", 3),
        (line + 1, "bool(tensor)", 3),
        (line + 2, ".cpu()", 3),
    ]
    assert found["places"][0]["file"].endswith("test_facts.py")


class OnGpu(torch.Tensor):
    is_cuda = True


def test_beside_a_gpu_the_hosts_own_tensors_are_waited_for_by_no_one():
    waits = HostWaits("cuda")
    waits.begin()
    for tensor in (torch.ones(1), torch.ones(1).as_subclass(OnGpu)):
        tensor.item()
    waits.end()
    assert waits.found(1)["calls"] == 1


KEY = "key"
SCHEDULE = Schedule(1, True, 10, 20, [Block("traced", 20, 3)], 23)


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(timing, "LISTEN_S", 0.05)


@pytest.fixture
def connect():
    listening = listen("127.0.0.1", 0)
    address = {"host": "127.0.0.1", "port": listening.getsockname()[1]}
    served = serve_on(listening, "127.0.0.1", timedelta(seconds=20))
    yield partial(store_at, address, 20.0)
    del served


def test_a_rank_that_ends_first_leaves_no_thread_behind(connect):
    """A thread inside the store's own code would abort the process while the interpreter ends."""
    first, second = (Agreement(rank, 2, connect, 20.0, KEY) for rank in (0, 1))
    time.sleep(0.1)
    second.close()
    assert not second.is_stuck and second.received is None
    first.close()


@cases("key", KEY, "guessed")
def test_a_rank_believes_schedule_and_end_only_of_one_that_knows_the_key(connect, key):
    first, second = Agreement(0, 2, connect, 20.0, key), Agreement(1, 2, connect, 20.0, KEY)
    first.send(SCHEDULE)
    wait_for(lambda: not second.is_stuck, 20.0, "the schedule")
    assert second.received == (SCHEDULE if key == KEY else None)
    assert not second.others_end()
    first.tell_end()
    assert second.others_end() == (key == KEY)
    assert not first.others_end()
