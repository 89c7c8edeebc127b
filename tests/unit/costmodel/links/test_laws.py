from math import ceil, floor, log2

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from scalebench.analysis.attribution import WIRE_FACTORS
from scalebench.costmodel.links import laws
from scalebench.costmodel.links.fitted import LinkModel
from scalebench.costmodel.links.fitting import fit_links
from scalebench.costmodel.links.nccl_tests import run as nccl_operations
from tests.builders.links.link_sweeps import sweep
from tests.examples import cases

RANKS = st.integers(2, 1000)


def halving_doubling_messages(n):
    """Shares of D that the busiest rank sends, one step after another."""
    steps = floor(log2(n))
    halves = [1 / 2**k for k in range(1, steps + 1)]
    fold = [] if 2**steps == n else [1]
    return [*fold, *halves, *reversed(halves), *fold]


MESSAGES = {
    ("all_reduce", "ring"): lambda n: 2 * (n - 1) * [1 / n],
    ("all_reduce", "halving-doubling"): halving_doubling_messages,
    ("all_reduce", "binomial tree"): lambda n: 2 * ceil(log2(n)) * [1],
    ("all_reduce", "gather-broadcast"): lambda n: 2 * (n - 1) * [1],
    ("all_gather", "ring"): lambda n: (n - 1) * [1 / n],
    ("reduce_scatter", "ring"): lambda n: (n - 1) * [1 / n],
    ("all_to_all", "pairwise"): lambda n: (n - 1) * [1 / n],
    ("broadcast", "tree"): lambda n: ceil(log2(n)) * [1],
    ("reduce", "tree"): lambda n: ceil(log2(n)) * [1],
    ("send_recv", "point-to-point"): lambda n: [1],
    ("send_recv", "ring"): lambda n: [1],
    ("send_recv_ring", "ring"): lambda n: [1],
}
"""What is sent, step by step, by algorithms that are not pipelined; written independently."""


@cases("law", *MESSAGES, ids=" ".join)
@given(n=RANKS)
def test_a_law_counts_the_messages_of_its_algorithm(law, n):
    messages = MESSAGES[law](n)
    terms = laws.law_terms(*law, n)
    assert terms.latency_steps == len(messages)
    assert terms.bytes_factor == pytest.approx(sum(messages), rel=1e-12)


@given(n=RANKS)
def test_no_all_reduce_moves_less_than_the_ring(n):
    """2(N−1)/N·D is the least possible (Patarasuk & Yuan 2009)."""
    for algorithm in laws.algorithms("all_reduce"):
        least = laws.law_terms("all_reduce", "ring", n).bytes_factor
        assert laws.law_terms("all_reduce", algorithm, n).bytes_factor >= least - 1e-12


@cases("law", *laws.LAWS, ids=" ".join)
def test_one_rank_sends_nothing(law):
    assert laws.law_terms(*law, 1) == (0, 0)


@given(power=st.integers(0, 6), nodes=st.integers(1, 64))
def test_a_hierarchy_of_equal_links_is_a_ring(power, nodes):
    """With B alike and an α across that is g times the one inside."""
    per_node = 2**power
    inside, across = laws.hierarchical_all_reduce(per_node, nodes)
    ring = laws.law_terms("all_reduce", "ring", per_node * nodes)
    assert inside.bytes_factor + across.bytes_factor == pytest.approx(ring.bytes_factor)
    latency = inside.latency_steps + per_node * across.latency_steps
    assert latency == pytest.approx(ring.latency_steps)


@given(n=st.integers(1, 5000))
def test_nccl_tests_the_laws_and_the_trace_count_bytes_alike(n):
    """Three places that know these factors, each with operations that the others lack."""
    for op in set(laws.OPERATIONS) & set(nccl_operations.OPERATIONS):
        assert nccl_operations.busbw_factor(op, n) == pytest.approx(laws.busbw_factor(op, n)), op
    for op in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"):
        assert WIRE_FACTORS[op](n) == pytest.approx(laws.busbw_factor(op, n)), op


@cases("n", 2, 3, 8)
def test_a_pipelined_ring_is_a_chain_that_passes_small_pieces_on(n):
    """Piece by piece and rank by rank: a link sends one piece at a time, which arrives α later."""
    alpha_s, piece_s, num_pieces = 5e-6, 1e-7, 2000
    arrives = [0.0] * num_pieces
    for _ in range(n - 1):
        free = 0.0
        for piece in range(num_pieces):
            free = max(arrives[piece], free) + piece_s
            arrives[piece] = free + alpha_s
    by_law = laws.law_terms("broadcast", "ring", n).time_s(num_pieces, alpha_s, 1 / piece_s)
    assert arrives[-1] == pytest.approx(by_law, rel=0.01)


@cases("name", *nccl_operations.DTYPES)
def test_the_elements_of_nccl_tests_are_as_long_as_torchs(name):
    dtype, size = nccl_operations.DTYPES[name]
    assert getattr(torch, dtype).itemsize == size


SIZES = [2**power for power in range(3, 16)]
TIMES_US = {
    16: [
        *(163.4, 162.9, 164.1, 163.6, 164.1, 162.5, 162.8),
        *(166.5, 166.6, 168.3, 171.9, 174.9, 184.8),
    ],
    32: [
        *(319.4, 320.9, 317.2, 321.3, 319.6, 318.1, 317.8),
        *(320.9, 324.5, 326.3, 327.5, 336.5, 343.3),
    ],
    64: [
        *(631.3, 686.3, 627.5, 632.0, 629.1, 628.2, 631.8),
        *(634.2, 633.3, 631.6, 637.2, 644.3, 663.2),
    ],
}


def test_eight_nodes_are_predicted_from_two_and_four():
    points = [p for n in (16, 32) for p in sweep(SIZES, np.divide(TIMES_US[n], 1e6), world_size=n)]
    link = LinkModel(fit_links(points)[0])
    errors = [
        link.time("all_reduce", 64, size).time_s / (time_us / 1e6) - 1
        for size, time_us in zip(SIZES, TIMES_US[64], strict=True)
        if time_us < 680  # the published table has one size that stands out
    ]
    assert max(map(abs, errors)) < 0.05
    assert sum(map(abs, errors)) / len(errors) < 0.035
