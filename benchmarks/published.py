"""Published configurations: does the search choose them, and does it predict their throughput?

Entered as their papers print them, with links and devices of data sheets. One efficiency for each
paper is chosen: that of the first row, which has no tensor or pipeline groups, or a round one.
Everything else is predicted; of Megatron-LM's other rows also the efficiency, by the memory that
their operators move (`memory_bound`). ``python -m`` prints the table of docs/search.md.

The papers themselves were not at hand. The numbers were compared with independent copies of their
tables: Megatron-LM's table 1 with transcriptions that also have the percentage of peak and the
aggregate FLOP/s (of the rows 3.6B and 7.5B only the shapes were found), its heads, widths and
layers with published training scripts for these sizes, the largest one's with the model files of
calculon; Llama 3's table 4 with the speaker's slide at SC24 as reported by G. K. Lockwood
(glennklockwood.com/garden/llama-3.1), its layers and widths with Dubey et al., table 3.

What operators that only move memory take of a GPT step, and the efficiency that is left.

Norms, dropout, softmax and the like do few FLOPs for each byte, so the device's memory sets their
pace. Their part falls as a model gets wider: matrix products grow with the square of the width,
what lies between them with the width. For models that store attention's scores and compute every
block again, as Megatron-LM did for SC21.
"""

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks import published_sets
from scalebench.costmodel.links.topology import TOPOLOGIES
from scalebench.search.choice import choices
from scalebench.search.model import SearchModel
from scalebench.search.prediction.links import NominalLinks
from scalebench.search.prediction.speed import assumed_speed, device_type
from scalebench.search.ranking import search
from scalebench.search.scores import Z90
from scalebench.search.space import ComputeSpeed, Job

PASSES_OVER_MEMORY = 7
"""Each stored activation is written and read once in the forward pass and when it is computed
again; in the backward pass it is read, and its gradient is written and read."""

PASSES_OF_FLOPS = 4
"""Forward, forward again, and a backward pass of twice that."""


def moved_bytes(model: SearchModel, tensor: int) -> float:
    """Return the bytes that a rank moves for one sample and block, forward to backward.

    Stored are ``s·h·(10 + 24/t + 5·a·s/(h·t))`` bytes, with dropout and scores, in 16 bits
    (Korthikanti et al. 2022, §4.1 and §4.2.1).
    """
    tokens, width = model.context, model.width
    scores = 5 * model.heads * tokens / (width * tensor)
    return PASSES_OVER_MEMORY * tokens * width * (10 + 24 / tensor + scores)


def block_flops(model: SearchModel, tensor: int) -> float:
    """Return the FLOPs of a rank for one sample and block: ``24·s·h² + 4·s²·h`` in each pass."""
    tokens, width = model.context, model.width
    forward = 24 * tokens * width**2 + 4 * tokens**2 * width
    return PASSES_OF_FLOPS * forward / tensor


def matrix_efficiency(
    model: SearchModel, tensor: int, efficiency: float, peak_flops: float, byte_per_s: float
) -> float:
    """Return the part of its peak that a device reaches in matrix products alone.

    Args:
        model: Whose efficiency is known.
        tensor: Ranks of a tensor group.
        efficiency: Of its whole blocks.
        peak_flops: Of the device, FLOP/s.
        byte_per_s: Of its memory.
    """
    flops, moved_s = block_flops(model, tensor), moved_bytes(model, tensor) / byte_per_s
    return flops / peak_flops / (flops / (efficiency * peak_flops) - moved_s)


def whole_efficiency(
    model: SearchModel, tensor: int, of_matrices: float, peak_flops: float, byte_per_s: float
) -> float:
    """Return the part of its peak that a device reaches on whole blocks; arguments as above."""
    flops, moved_s = block_flops(model, tensor), moved_bytes(model, tensor) / byte_per_s
    return flops / peak_flops / (flops / (of_matrices * peak_flops) + moved_s)


FIRST_EFFICIENCY, LLAMA_EFFICIENCY = 0.45, 0.5
A100_BYTE_PER_S = 2039e9
"""Memory of an A100 SXM4 with 80 GB: NVIDIA A100 datasheet (2021)."""

ERROR = 0.147
"""vTrain's worst error (Bang et al. 2024), for the interval."""


@dataclass(frozen=True)
class Published:
    """One row of a paper.

    Attributes:
        flops: Measured FLOP/s of a GPU, as the paper counts them.
        recomputes: Whether that counts the recomputed forward pass, too.
    """

    model: SearchModel
    world_size: int
    batch: int
    tensor: int
    pipeline: int
    context: int
    flops: float
    recomputes: bool


def _megatron(
    name: str, heads: int, width: int, layers: int, tensor: int, pipeline: int, n: int, batch: int,
    tera: float,
) -> Published:  # fmt: skip
    model = SearchModel(
        name=name, layers=layers, heads=heads, width=width, context=2048, vocabulary=51200,
        kv_heads=heads, inner=4 * width,
    )  # fmt: skip
    return Published(model, n, batch, tensor, pipeline, 1, tera * 1e12, True)


MEGATRON = (
    _megatron("GPT 1.7B", 24, 2304, 24, 1, 1, 32, 512, 137),
    _megatron("GPT 3.6B", 32, 3072, 30, 2, 1, 64, 512, 138),
    _megatron("GPT 7.5B", 32, 4096, 36, 4, 1, 128, 512, 142),
    _megatron("GPT 18.4B", 48, 6144, 40, 8, 1, 256, 1024, 135),
    _megatron("GPT 39.1B", 64, 8192, 48, 8, 2, 512, 1536, 138),
    _megatron("GPT 76.1B", 80, 10240, 60, 8, 4, 1024, 1792, 140),
    _megatron("GPT 145.6B", 96, 12288, 80, 8, 8, 1536, 2304, 148),
    _megatron("GPT 310.1B", 128, 16384, 96, 8, 16, 1920, 2160, 155),
    _megatron("GPT 529.6B", 128, 20480, 105, 8, 35, 2520, 2520, 163),
    _megatron("GPT 1008.0B", 160, 25600, 128, 8, 64, 3072, 3072, 163),
)
"""Narayanan et al. 2021 (SC21), table 1: A100, NVSwitch, eight HDR InfiniBand links a node."""

LLAMA = SearchModel(
    name="Llama 3 405B", layers=126, heads=128, width=16384, context=8192, vocabulary=128256,
    kv_heads=8, inner=53248, gated=True, tied=False,
)  # fmt: skip
LLAMAS = (
    Published(LLAMA, 8192, 2048, 8, 16, 1, 430e12, False),
    Published(LLAMA, 16384, 2048, 8, 16, 1, 400e12, False),
    Published(
        replace(LLAMA, name="Llama 3 128k", context=131_072), 16384, 128, 8, 16, 16, 380e12, False
    ),
)
"""Dubey et al. 2024 (Llama 3), table 4: H100, NVLink, 400 Gbit/s a GPU.

FSDP whose shards are gathered once a step in 16 bits (§3.3.2: not resharded after forward).
"""


@dataclass(frozen=True)
class Compared:
    """A row against the search.

    Attributes:
        place: Of the published tensor, context and pipeline sizes among all of them, from 1.
        first: The search's own, in that order; None: nothing fits.
        predicted: FLOP/s of a GPU with the published sizes, the best of everything else.
        low: Lower end of its 90 % interval.
        high: Upper end.
    """

    row: Published
    place: int | None
    first: tuple[int, int, int] | None
    predicted: float
    low: float
    high: float


def compared(
    row: Published, speed: ComputeSpeed, topology: str, memory_bytes: int, scatters: bool = True
) -> Compared:
    """Search a row's job in the space that its system had.

    Args:
        row: What was published.
        speed: Of its devices.
        topology: Of its links.
        memory_bytes: Of a device.
        scatters: Whether Megatron-LM's tensor groups divide messages between stages (§4.1).
    """
    job = Job(
        row.model, row.world_size, row.batch, speed, NominalLinks(TOPOLOGIES[topology], ""),
        device="cuda", memory_limit_bytes=memory_bytes, buckets_mb=(25.0,), sequence=False,
        receives_ahead=False,
    )  # fmt: skip
    if row.recomputes:
        job = replace(job, axes=("tensor", "data", "pipeline"), checkpointing=("full",))
        job = replace(job, scatters_messages=scatters)
    else:
        axes = ("tensor", "context", "shard", "pipeline")
        job = replace(job, axes=axes, zero_stages=(2,), sequence=True, gathered_bytes_each=2)
        job = replace(job, selective_sends_again=False)
    made = choices(job, search(job, wanted=10**6, prune=False).ways)
    sizes = list(dict.fromkeys((one.tensor, one.context, one.pipeline) for one in made))
    wanted = (row.tensor, row.context, row.pipeline)
    same = [one for one in made if (one.tensor, one.context, one.pipeline) == wanted]
    work = row.model.flops_per_sample * row.batch / row.world_size
    work *= 4 / 3 if row.recomputes else 1
    step = same[0].step_s if same else np.nan
    reach = np.exp(Z90 * ERROR)
    return Compared(
        row=row,
        place=sizes.index(wanted) + 1 if wanted in sizes else None,
        first=sizes[0] if sizes else None,
        predicted=work / step,
        low=work / step / reach,
        high=work / step * reach,
    )


def efficiency_of(row: Published) -> float:
    """Return the part of its peak that a device reaches on a row of `MEGATRON`.

    Matrix products have one efficiency in all rows, that of the first; by its width, heads and
    tensor groups, a row's other operators take more or less of its step.
    """
    first = MEGATRON[0]
    peak = assumed_speed(device_type("a100"), 1.0).peak_flops["bfloat16"]
    device = {"peak_flops": peak, "byte_per_s": A100_BYTE_PER_S}
    of_matrices = matrix_efficiency(first.model, first.tensor, FIRST_EFFICIENCY, **device)
    return whole_efficiency(row.model, row.tensor, of_matrices, **device)


def all_compared(scatters: bool = True, one_efficiency: bool = False) -> Iterator[Compared]:
    """Yield every published row against the search; see `compared`.

    Args:
        scatters: See there.
        one_efficiency: Whether all rows of Megatron-LM have that of the first.
    """
    a100, h100 = device_type("a100"), device_type("h100")
    for row in MEGATRON:
        speed = assumed_speed(a100, FIRST_EFFICIENCY if one_efficiency else efficiency_of(row))
        yield compared(row, speed, "dgx-a100", a100.memory_bytes, scatters)
    for row in LLAMAS:
        yield compared(row, assumed_speed(h100, LLAMA_EFFICIENCY), "dgx-h100", h100.memory_bytes)


def table(scatters: bool = True, one_efficiency: bool = False) -> str:
    """Return the comparison as text, misses included; see `all_compared`."""
    lines = [
        f"{'model':<13}{'GPUs':>6}  {'published':<11}{'search':<11}{'place':>5}  "
        f"{'TFLOP/s':>7}  {'predicted':<16}  inside"
    ]
    for one in all_compared(scatters, one_efficiency):
        row = one.row
        inside = "yes" if one.low <= row.flops <= one.high else "no"
        shown = f"{one.predicted / 1e12:.0f} ({one.low / 1e12:.0f}-{one.high / 1e12:.0f})"
        first = _sizes(*one.first) if one.first else "-"
        if one.place is None:
            shown = inside = "-"  # by the memory model it does not fit
        lines.append(
            f"{row.model.name:<13}{row.world_size:>6}  "
            f"{_sizes(row.tensor, row.context, row.pipeline):<11}{first:<11}"
            f"{one.place or '-':>5}  {row.flops / 1e12:>7.0f}  {shown:<16}  "
            f"{inside}"
        )
    return "\n".join(lines)


def _sizes(tensor: int, context: int, pipeline: int) -> str:
    told = [f"t{tensor}", *([f"c{context}"] if context > 1 else []), f"p{pipeline}"]
    return " ".join(told)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--whole-messages", action="store_true",
        help="Megatron-LM without its scatter/gather between stages (Narayanan et al. 2021, §4.1)",
    )  # fmt: skip
    parser.add_argument(
        "--one-efficiency", action="store_true",
        help="the first row's efficiency for all of Megatron-LM, whatever memory they move",
    )  # fmt: skip
    parser.add_argument("--data", type=Path, help="a folder of other people's tables instead")
    asked = parser.parse_args()
    if asked.data is not None:
        for line in published_sets.table(asked.data):
            print(line, flush=True)
        return
    print(table(not asked.whole_messages, asked.one_efficiency))


if __name__ == "__main__":
    main()
