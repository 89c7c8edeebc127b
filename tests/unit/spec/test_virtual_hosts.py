import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from scalebench.errors import UsageError
from scalebench.spec.virtual_hosts import (
    MAX_BIT_PER_S,
    MIN_BIT_PER_S,
    VirtualHosts,
    parse_rate,
    rate_text,
)


def hosts(*rates, **fields):
    return VirtualHosts(link_bit_per_s=rates or (50_000_000,), **fields)


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("50mbit", 50_000_000),
        ("1gbit", 10**9),
        ("1.5Gbit", 1_500_000_000),
        (" 2500 kbit ", 2_500_000),
        ("10mbit/s", 10_000_000),
    ],
)
def test_rates_as_people_write_them(text, rate):
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "text", ["", "50", "mbit", "50 mb", "50mbps", "-1mbit", "1e3mbit", "∞mbit"]
)
def test_what_is_no_rate_is_answered_with_an_example(text):
    with pytest.raises(UsageError, match="50mbit"):
        parse_rate(text)


@given(st.integers(MIN_BIT_PER_S // 1000, MAX_BIT_PER_S // 1000))
def test_a_rate_in_whole_kilobits_is_read_as_it_is_written(kilobits):
    written = rate_text(kilobits * 1000)
    assert parse_rate(written) == pytest.approx(kilobits * 1000, rel=1e-5)


def test_ranks_may_have_different_shares():
    slow = hosts(cpu_shares=(1, 0.6, 0.33))
    assert (slow.threads, slow.cpu) == (1, "1,0.6,0.33")
    assert (slow.shares(1), slow.shares(3)) == ((1,), (1, 0.6, 0.33))
    assert hosts(cpus_per_rank=0.2).shares(2) == (0.2, 0.2) and hosts().shares(2) is None
    slow.check([1, 3], num_cores=2)
    with pytest.raises(UsageError, match=r"gives 3 shares and N=4 has 4 ranks\. Give 4 shares, or"):
        slow.check([1, 4], num_cores=2)
    with pytest.raises(UsageError, match=r"--cpus-per-rank 3 is more CPU than there is"):
        hosts(cpu_shares=(1, 3)).check([2], num_cores=2)


def test_no_more_cpu_than_there_is_and_no_more_hosts_than_addresses():
    hosts(cpus_per_rank=2).check([1], num_cores=2)
    with pytest.raises(UsageError, match=r"2\.5 is more CPU than there is: 2 core"):
        hosts(cpus_per_rank=2.5).check([1], num_cores=2)
    with pytest.raises(UsageError, match="at most 250"):
        hosts().check([251], num_cores=2)


@pytest.mark.parametrize(
    "fields",
    [
        {"hosts_per_rack": 2},
        {"inter_bit_per_s": 10**8},
        {"ranks_per_host": 0},
        {"cpus_per_rank": 0},
        {"cpus_per_rank": float("inf")},
        {"cpu_shares": (0.5, 0)},
        {"cpus_per_rank": 0.5, "cpu_shares": (0.5, 0.2)},
        {"unknown": 1},
    ],
)
def test_fields_that_contradict_themselves(fields):
    with pytest.raises(ValidationError):
        hosts(**fields)
    with pytest.raises(ValidationError):
        VirtualHosts(link_bit_per_s=())
