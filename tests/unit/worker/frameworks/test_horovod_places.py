"""Where Horovod is told that a rank stands: on its host, and among hosts."""

import pytest

from scalebench.spec import Horovod
from scalebench.worker.frameworks.horovod import (
    Host,
    host_place,
    refuse_without_addresses,
    refuse_without_nccl,
    variables,
)
from scalebench.worker.process.failure import Unsupported

LOOPBACK = "127.0.0.1"
ONE = Host("one", LOOPBACK, LOOPBACK)
A, B = Host("a", "10.0.0.1", "10.0.0.1"), Host("b", "10.0.0.2", "192.168.0.2")


def test_ranks_of_one_machine_are_local():
    assert host_place([ONE, ONE], 1) == {
        "RANK": 1,
        "SIZE": 2,
        "LOCAL_RANK": 1,
        "LOCAL_SIZE": 2,
        "CROSS_RANK": 0,
        "CROSS_SIZE": 1,
    }


def test_hosts_may_have_different_numbers_of_ranks():
    hosts = [A, A, B]
    assert host_place(hosts, 1)["CROSS_SIZE"] == 1  # no second rank on host b
    first_of_b = host_place(hosts, 2)
    assert (first_of_b["LOCAL_RANK"], first_of_b["LOCAL_SIZE"]) == (0, 1)
    assert (first_of_b["CROSS_RANK"], first_of_b["CROSS_SIZE"]) == (1, 2)


def test_virtual_hosts_share_a_name_and_differ_by_address():
    hosts = [Host("same", f"10.0.0.{number}", LOOPBACK) for number in (1, 2)]
    assert host_place(hosts, 1)["LOCAL_SIZE"] == 1


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
