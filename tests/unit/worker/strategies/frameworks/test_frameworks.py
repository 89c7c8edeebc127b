"""The configuration that DeepSpeed is given: nothing hidden, buckets in its own unit."""

import pytest

from scalebench.worker.process.failure import Unsupported
from scalebench.worker.strategies.frameworks.horovod import (
    Host,
    refuse_without_addresses,
    refuse_without_nccl,
)

LOOPBACK = "127.0.0.1"
ONE = Host("one", LOOPBACK, LOOPBACK)
A, B = Host("a", "10.0.0.1", "10.0.0.1"), Host("b", "10.0.0.2", "192.168.0.2")


NAMED = A._replace(address_of_name="127.0.1.1")


def test_machines_without_an_address_that_others_reach_are_refused_in_one_line():
    for fine in ([ONE, ONE], [A, B], [NAMED, NAMED]):
        refuse_without_addresses(fine)
    with pytest.raises(Unsupported, match="GLOO_SOCKET_IFNAME=eth0"):
        refuse_without_addresses([ONE, ONE._replace(name="two")])
    with pytest.raises(Unsupported, match=r"a is 127.0.1.1, which other hosts cannot reach"):
        refuse_without_addresses([NAMED, B])


def test_gpus_need_a_horovod_with_nccl():
    refuse_without_nccl("cuda", True)
    refuse_without_nccl("cpu", False)
    with pytest.raises(Unsupported, match="HOROVOD_GPU_OPERATIONS=NCCL make horovod"):
        refuse_without_nccl("cuda", False)
