"""Published rows as their papers print them, and what is made of a search of theirs."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from scalebench.costmodel.links.topology import TOPOLOGIES
from scalebench.costmodel.search import published
from scalebench.costmodel.search.choice import Choice
from scalebench.costmodel.search.job import ComputeSpeed, Job
from scalebench.costmodel.search.model import SearchModel
from scalebench.costmodel.search.published import (
    LLAMA,
    LLAMAS,
    MEGATRON,
    Compared,
    Published,
    all_compared,
    compared,
    efficiency_of,
    table,
)

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


@pytest.mark.parametrize(("row", "line"), [*zip(MEGATRON, PRINTED, strict=True)])
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


@pytest.mark.parametrize(
    ("row", "world_size", "context_ranks", "replicas", "tokens", "each", "tera"),
    [
        (LLAMAS[0], 8192, 1, 64, 8192, 32, 430),
        (LLAMAS[1], 16384, 1, 128, 8192, 16, 400),
        (LLAMAS[2], 16384, 16, 8, 131072, 16, 380),
    ],
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


SMALL = SearchModel(
    name="small", layers=3, heads=4, width=10, context=7, vocabulary=11, kv_heads=4, inner=40
)
WORK = 3.0 * (3 * (2 * (4 * 100 + 2 * 400) * 7 + 4 * 49 * 10) + 2 * 7 * 10 * 11)
"""FLOPs of a sample: 24·s·h² + 4·s²·h for each of three layers, and the logits; backward twice."""
SPEED = ComputeSpeed({"bfloat16": 1e-12}, 0.0, 0.0, "a test", {})
MADE = [
    Choice(data=5, tensor=2, pipeline=3, step_s=2.0),
    Choice(data=5, tensor=3, pipeline=2, step_s=3.0),
    Choice(data=5, tensor=3, pipeline=2, step_s=4.0, zero=1),  # the same sizes, and slower
    Choice(data=3, tensor=2, context=5, step_s=5.0),
]


def search_of(
    monkeypatch: pytest.MonkeyPatch, row: Published, made: list[Choice], **changes: Any
) -> tuple[Compared, Job]:
    """Compare a row with what a search is said to have found; return also what was searched."""
    jobs = []

    def search(job: Job, wanted: int, prune: bool) -> SimpleNamespace:
        assert not prune, "ways that bounds exclude would have no place"
        jobs.append(job)
        return SimpleNamespace(ways="found")

    def choices(job: Job, found: str) -> list[Choice]:
        assert job is jobs[0] and found == "found"
        return made

    monkeypatch.setattr(published, "search", search)
    monkeypatch.setattr(published, "choices", choices)
    return compared(row, SPEED, "dgx-a100", 80, **changes), jobs[0]


def row_of(tensor: int, context: int, pipeline: int, recomputes: bool) -> Published:
    return Published(SMALL, 30, 60, tensor, pipeline, context, 1e12, recomputes)


@pytest.mark.parametrize(
    ("tensor", "context", "pipeline", "place", "step_s"),
    [(2, 1, 3, 1, 2.0), (3, 1, 2, 2, 3.0), (2, 5, 1, 3, 5.0)],
)
@pytest.mark.parametrize(("recomputes", "factor"), [(True, 4 / 3), (False, 1.0)])
def test_a_row_has_the_place_of_its_sizes_and_the_flops_of_their_fastest_way(
    monkeypatch: pytest.MonkeyPatch,
    tensor: int, context: int, pipeline: int, place: int, step_s: float,
    recomputes: bool, factor: float,
) -> None:  # fmt: skip
    row = row_of(tensor, context, pipeline, recomputes)
    found, _ = search_of(monkeypatch, row, MADE)
    flops = factor * WORK * 60 / 30 / step_s
    assert (found.row, found.place, found.first) == (row, place, (2, 1, 3))
    assert found.predicted == pytest.approx(flops)
    assert found.low == pytest.approx(flops / math.exp(1.6449 * 0.147))
    assert found.high == pytest.approx(flops * math.exp(1.6449 * 0.147))


def test_sizes_that_were_not_found_have_no_place_and_no_prediction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = search_of(monkeypatch, row_of(5, 1, 6, True), MADE)
    assert found.place is None and found.first == (2, 1, 3) and math.isnan(found.predicted)
    none, _ = search_of(monkeypatch, row_of(5, 1, 6, True), [])
    assert none.place is None and none.first is None


@pytest.mark.parametrize("scatters", [True, False])
def test_megatron_is_searched_in_the_space_that_it_had(
    monkeypatch: pytest.MonkeyPatch, scatters: bool
) -> None:
    _, job = search_of(monkeypatch, row_of(2, 1, 3, True), MADE, scatters=scatters)
    assert (job.model, job.world_size, job.batch, job.speed) == (SMALL, 30, 60, SPEED)
    assert job.links.topology == TOPOLOGIES["dgx-a100"]  # type: ignore[attr-defined]
    assert (job.device, job.memory_limit_bytes, job.buckets_mb) == ("cuda", 80, (25.0,))
    assert job.axes == ("tensor", "data", "pipeline") and job.checkpointing == ("full",)
    assert not job.sequence and not job.receives_ahead and job.scatters_messages == scatters
    assert job.gathered_bytes_each == 4 and job.selective_sends_again


def test_megatron_scatters_messages_unless_it_is_asked_not_to(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, job = search_of(monkeypatch, row_of(2, 1, 3, True), MADE)
    assert job.scatters_messages


def test_llama_is_searched_in_the_space_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    _, job = search_of(monkeypatch, row_of(2, 1, 3, False), MADE)
    assert job.axes == ("tensor", "context", "shard", "pipeline") and job.zero_stages == (2,)
    assert job.checkpointing == ("none", "selective", "full")
    assert job.sequence and not job.receives_ahead and not job.scatters_messages
    assert job.gathered_bytes_each == 2 and not job.selective_sends_again


@pytest.mark.parametrize("number", [0, 1, 3, 9])
def test_a_rows_efficiency_is_that_of_the_first_rows_products_and_its_own_memory(
    number: int,
) -> None:
    """Times of one sample and block on an A100: 312 TFLOP/s, 2039 GB/s (data sheet)."""
    assert published.A100_BYTE_PER_S == 2039e9

    def of_row(row: Published) -> tuple[float, float]:
        s, h, a, t = row.model.context, row.model.width, row.model.heads, row.tensor
        flops = 4 * (24 * s * h * h + 4 * s * s * h) / t
        return flops / 312e12, 7 * s * h * (10 + 24 / t + 5 * a * s / (h * t)) / 2039e9

    best_s, moving_s = of_row(MEGATRON[0])
    products_s = best_s / 0.45 - moving_s
    of_products = best_s / products_s
    best_s, moving_s = of_row(MEGATRON[number])
    expected = best_s / (best_s / of_products + moving_s)
    assert efficiency_of(MEGATRON[number]) == pytest.approx(expected)


@pytest.mark.parametrize(("scatters", "one"), [(True, False), (False, True)])
def test_every_row_is_compared_on_its_own_devices(
    monkeypatch: pytest.MonkeyPatch, scatters: bool, one: bool
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(published, "compared", lambda *given: asked.append(given))
    list(all_compared(scatters, one))
    megatron, llama = asked[: len(MEGATRON)], asked[len(MEGATRON) :]
    assert [row for row, *_ in megatron] == list(MEGATRON)
    for row, speed, topology, memory_bytes, with_scattering in megatron:
        efficiency = 0.45 if one else efficiency_of(row)
        assert speed.flop_s["bfloat16"] == pytest.approx(1 / (efficiency * 312e12))
        assert (topology, memory_bytes, with_scattering) == ("dgx-a100", 80e9, scatters)
    assert [row for row, *_ in llama] == list(LLAMAS)
    for _, speed, *rest in llama:
        assert speed.flop_s["bfloat16"] == pytest.approx(1 / (0.5 * 989e12), rel=1e-3)
        assert rest == ["dgx-h100", 80e9]


def test_megatron_scatters_and_has_efficiencies_of_its_own_unless_it_is_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[Any, ...]] = []
    monkeypatch.setattr(published, "compared", lambda *given: asked.append(given))
    list(all_compared())
    assert asked[0][-1] is True
    assert asked[9][1].flop_s["bfloat16"] == pytest.approx(
        1 / (efficiency_of(MEGATRON[9]) * 312e12)
    )


def shown(row: Published, place: int | None, first: tuple[int, int, int] | None, low: float):
    return Compared(row, place, first, predicted=150.6e12, low=low, high=430e12)


def test_the_table_has_a_line_for_each_row_also_for_those_that_miss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = [
        shown(LLAMAS[0], 12, (8, 1, 16), 100.4e12),  # the upper end is inside
        shown(MEGATRON[4], 3, (4, 2, 7), 138e12),  # so is the lower one
        shown(MEGATRON[4], 3, (4, 2, 7), 138.1e12),
        shown(LLAMAS[2], None, None, 100.4e12),
    ]
    asked = []

    def compare(*given: bool) -> list[Compared]:
        asked.append(given)
        return rows

    monkeypatch.setattr(published, "all_compared", compare)
    assert table(False, True).splitlines() == [
        "model          GPUs  published  search     place  TFLOP/s  predicted         inside",
        "Llama 3 405B   8192  t8 p16     t8 p16        12      430  151 (100-430)     yes",
        "GPT 39.1B       512  t8 p2      t4 c2 p7       3      138  151 (138-430)     yes",
        "GPT 39.1B       512  t8 p2      t4 c2 p7       3      138  151 (138-430)     no",
        "Llama 3 128k  16384  t8 c16 p16 -              -      380  -                 -",
    ]
    table()
    assert asked == [(False, True), (True, False)]


def test_the_command_says_what_it_is_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["published", "--help"])
    with pytest.raises(SystemExit):
        published.main()
    words = " ".join(capsys.readouterr().out.split())
    assert "Published configurations: does the search choose them, and does it predict" in words


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], (True, False)),
        (["--whole-messages"], (False, False)),
        (["--one-efficiency"], (True, True)),
    ],
)
def test_the_command_prints_the_table_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], options: list[str],
    expected: tuple[bool, bool],
) -> None:  # fmt: skip
    monkeypatch.setattr(published, "table", lambda *given: str(given))
    monkeypatch.setattr("sys.argv", ["published", *options])
    published.main()
    assert capsys.readouterr().out == f"{expected}\n"
