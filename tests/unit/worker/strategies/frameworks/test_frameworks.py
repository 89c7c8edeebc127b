"""The configuration that DeepSpeed is given: nothing hidden, buckets in its own unit."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scalebench.spec import DeepSpeed, Horovod
from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.frameworks.deepspeed_engine import engine_config
from scalebench.worker.strategies.frameworks.horovod import (
    Host,
    host_place,
    refuse_without_addresses,
    refuse_without_nccl,
    variables,
)
from scalebench.worker.strategies.frameworks.surroundings import framework_facts


def config(strategy: DeepSpeed, device: str = "cpu") -> dict[str, Any]:
    context: Any = SimpleNamespace(device=torch.device(device), cell=SimpleNamespace(rank_batch=8))
    return engine_config(strategy, context)


def test_nothing_is_clipped_and_buckets_are_elements():
    made = config(DeepSpeed(stage=2, bucket_mb=1, accumulate=2))
    assert made["gradient_clipping"] == 0.0
    assert made["zero_optimization"]["reduce_bucket_size"] == 2**18
    assert made["train_micro_batch_size_per_gpu"] == 4
    assert made["gradient_accumulation_steps"] == 2


def test_as_shipped_sets_nothing_that_has_a_default():
    made = config(DeepSpeed(stage=2, bucket_mb=None, as_shipped=True))
    assert made["zero_optimization"] == {"stage": 2}
    assert "gradient_clipping" not in made and "steps_per_print" not in made


LOOPBACK = "127.0.0.1"
ONE = Host("one", LOOPBACK, LOOPBACK)
A, B = Host("a", "10.0.0.1", "10.0.0.1"), Host("b", "10.0.0.2", "192.168.0.2")


def test_hosts_may_have_different_numbers_of_ranks():
    hosts = [A, A, B]
    assert host_place(hosts, 1)["CROSS_SIZE"] == 1  # no second rank on host b
    first_of_b = host_place(hosts, 2)
    assert (first_of_b["LOCAL_RANK"], first_of_b["LOCAL_SIZE"]) == (0, 1)
    assert (first_of_b["CROSS_RANK"], first_of_b["CROSS_SIZE"]) == (1, 2)


def test_rank_0_serves_the_addresses_and_the_buffer_is_in_bytes(monkeypatch):
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth0,eth1")
    hosts = [A, B]
    found = variables(Horovod(bucket_mb=2), host_place(hosts, 1), hosts, 4321)
    assert found["HOROVOD_GLOO_RENDEZVOUS_ADDR"] == "10.0.0.1"
    assert found["HOROVOD_GLOO_RENDEZVOUS_PORT"] == "4321"
    assert found["HOROVOD_HOSTNAME"] == "10.0.0.2"
    assert found["HOROVOD_GLOO_IFACE"] == "eth0"
    assert found["HOROVOD_FUSION_THRESHOLD"] == str(2 * 2**20)
    shipped = Horovod(bucket_mb=None, as_shipped=True)
    assert "HOROVOD_FUSION_THRESHOLD" not in variables(shipped, host_place(hosts, 0), hosts, 1)


def test_machines_without_an_address_are_refused_in_one_line():
    refuse_without_addresses([ONE, ONE])
    refuse_without_addresses([A, B])
    with pytest.raises(Unsupported, match="GLOO_SOCKET_IFNAME=eth0"):
        refuse_without_addresses([ONE, ONE._replace(name="two")])


def test_a_host_name_that_is_a_loopback_address_is_refused_in_one_line():
    named = A._replace(address_of_name="127.0.1.1")
    refuse_without_addresses([named, named])
    with pytest.raises(Unsupported, match=r"a is 127.0.1.1, which other hosts cannot reach"):
        refuse_without_addresses([named, B])


def test_gpus_need_a_horovod_with_nccl():
    refuse_without_nccl("cuda", True)
    refuse_without_nccl("cpu", False)
    with pytest.raises(Unsupported, match="HOROVOD_GPU_OPERATIONS=NCCL make horovod"):
        refuse_without_nccl("cuda", False)


def test_a_version_that_is_not_tested_is_marked(monkeypatch):
    known = "scalebench.worker.strategies.frameworks.surroundings.version"
    for found, untested in (("0.19.8", []), ("99.0", ["deepspeed"])):
        monkeypatch.setattr(known, lambda _, found=found: found)
        given = {"gradient_clipping": 0.0, "steps_per_print": float("inf")}
        facts = framework_facts(DeepSpeed(), given)["framework"]
        assert facts["untested"] == untested
        assert facts["versions"] == {"deepspeed": found}
        assert facts["tested"] == {"deepspeed": "0.19.8"}
        assert facts["settings"] == {"gradient_clipping": 0.0, "steps_per_print": "inf"}
