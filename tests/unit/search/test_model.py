"""A transformer's parameters and work, counted by hand and as papers name them."""

import pytest

from benchmarks.published import LLAMA, LLAMAS, MEGATRON, Published
from scalebench.search.model import SearchModel
from tests.examples import cases

MIXTURE = SearchModel(
    name="mixture", layers=3, heads=2, width=8, context=16, vocabulary=100, kv_heads=2, inner=32,
    experts=4, top_k=2,
)  # fmt: skip


def test_a_mixture_by_hand():
    attention, router, expert = 4 * 8 * 8, 8 * 4, 2 * 8 * 32
    assert MIXTURE.block_parameters == attention + router
    assert MIXTURE.expert_parameters == 4 * expert
    assert MIXTURE.num_parameters == 100 * 8 + 3 * (attention + router + 4 * expert)
    assert MIXTURE.matrix_flops == 2 * (attention + router + 2 * expert) * 16


PRINTED = """
    1.7   24   2304  24 1  1   32  512 137 44   4.4
    3.6   32   3072  30 2  1   64  512 138 44   8.8
    7.5   32   4096  36 4  1  128  512 142 46  18.2
   18.4   48   6144  40 8  1  256 1024 135 43  34.6
   39.1   64   8192  48 8  2  512 1536 138 44  70.8
   76.1   80  10240  60 8  4 1024 1792 140 45 143.8
  145.6   96  12288  80 8  8 1536 2304 148 47 227.1
  310.1  128  16384  96 8 16 1920 2160 155 50 297.4
  529.6  128  20480 105 8 35 2520 2520 163 52 410.2
 1008.0  160  25600 128 8 64 3072 3072 163 52 502.0
""".strip().split("\n")
"""Narayanan et al. 2021, table 1: parameters, heads, width, layers, tensor and pipeline ranks,
GPUs, batch, TFLOP/s of a GPU, percentage of peak, PFLOP/s of all."""


@cases("row, line", *zip(MEGATRON, PRINTED, strict=True))
def test_a_row_of_megatron_is_as_its_paper_prints_it(row: Published, line: str) -> None:
    billions, *whole, percent, peta = line.split()
    heads, width, layers, tensor, pipeline, world_size, batch, tera = map(int, whole)
    assert row == Published(
        model=SearchModel(
            name=f"GPT {billions}B", layers=layers, heads=heads, width=width, context=2048,
            vocabulary=51200, kv_heads=heads, inner=4 * width,
        ),
        world_size=world_size, batch=batch, tensor=tensor, pipeline=pipeline, context=1,
        flops=tera * 1e12, recomputes=True,
    )  # fmt: skip
    # The columns that are not entered follow from those that are, as exactly as they are printed.
    assert 100 * row.flops / 312e12 == pytest.approx(float(percent), abs=0.6)
    assert row.flops * world_size / 1e15 == pytest.approx(float(peta), rel=0.005)


@cases(
    "row, world_size, context_ranks, replicas, tokens, each, tera",
    (LLAMAS[0], 8192, 1, 64, 8192, 32, 430),
    (LLAMAS[1], 16384, 1, 128, 8192, 16, 400),
    (LLAMAS[2], 16384, 16, 8, 131072, 16, 380),
)
def test_a_row_of_llama_is_as_its_paper_prints_it(
    row: Published, world_size: int, context_ranks: int, replicas: int, tokens: int, each: int,
    tera: int,
) -> None:  # fmt: skip
    """Dubey et al. 2024, table 4: tensor 8, pipeline 16, 16M tokens a batch."""
    assert (row.tensor, row.pipeline, row.context) == (8, 16, context_ranks)
    assert row.world_size == world_size == 8 * 16 * context_ranks * replicas
    assert row.batch == replicas * each
    assert row.batch * row.model.context == 16 * 2**20 and row.model.context == tokens
    assert row.flops == tera * 1e12 and not row.recomputes


def test_llama_is_as_its_paper_prints_it() -> None:
    """Dubey et al. 2024, table 3."""
    assert SearchModel(
        name="Llama 3 405B", layers=126, heads=128, width=16384, context=8192, vocabulary=128256,
        kv_heads=8, inner=53248, gated=True, tied=False,
    ) == LLAMA  # fmt: skip
    assert LLAMAS[0].model is LLAMA and LLAMAS[2].model.name == "Llama 3 128k"
