"""GB/s of encode and decode of every codec, beside a plain copy and other implementations.

All of it on one core, in one process, float32 gradients drawn from a normal distribution. Rounds go
over all of a size's measurements in turn, so that what drifts on the machine hits them alike; the
best round of each is told, and the copy's beside it. Run as ``python -m benchmarks.codecs``.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from benchmarks.verdict import against_limit
from scalebench.spec.compression import resolve
from scalebench.worker.strategies.compression.codec import Bucket, Codec, NoMemory, OneRound
from scalebench.worker.strategies.compression.draw import Draw
from scalebench.worker.strategies.compression.emulation import run_in_lockstep
from scalebench.worker.strategies.compression.methods import CODECS

MB = 1_000_000
SIZES = (1 * MB, 25 * MB, 100 * MB)
COPY = "plain copy"
TARGET = 4.0
JUDGED_FROM = 25 * MB
"""Below, neither copy nor encoding leaves the cache."""
DRAW = Draw(seed=0, step=9, bucket=0, rank=0)

METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "fp16": ("fp16", {}),
    "bf16": ("bf16", {}),
    "8 bit nearest": ("quantise", {}),
    "8 bit stochastic": ("quantise", {"rounding": "stochastic"}),
    "4 bit nearest": ("quantise", {"bits": 4}),
    "2 bit nearest": ("quantise", {"bits": 2}),
    "1 bit nearest": ("quantise", {"bits": 1}),
    "sign": ("sign", {}),
    "terngrad": ("terngrad", {}),
    "qsgd 4 bit": ("qsgd", {}),
    "top-k 1 %": ("top-k", {}),
    "random-k 1 %": ("random-k", {}),
}
"""Label → method and parameters; each has one round."""

WHOLE = {
    "threshold": ("threshold", {"threshold": 2.576}),  # 1 % of a normal distribution
    "count-sketch 1 %": ("count-sketch", {}),
}
"""Methods of several rounds: encode and decode are timed together."""


@dataclass(frozen=True)
class Timed:
    """One thing to be timed, and what it is called."""

    label: str
    stage: str
    run: Callable[[], object]


def unpacked(values: torch.Tensor, chunk: int = 1024) -> torch.Tensor:
    """Quantise to 8 bits as one writes it down first: whole tensors, one pass after another."""
    chunks = values[: len(values) // chunk * chunk].view(-1, chunk)
    low, high = chunks.aminmax(dim=1, keepdim=True)
    return ((chunks - low) / (high - low) * 255).round().to(torch.uint8)


def things_to_time(values: torch.Tensor) -> list[Timed]:
    """Return everything that is timed for one gradient."""
    target, half = torch.empty_like(values), values.half()
    count = max(1, len(values) // 100)
    timed = [
        Timed(COPY, "", lambda: target.copy_(values)),
        Timed("8 bit, obvious", "encode", lambda: unpacked(values)),
        Timed("torch.topk alone", "encode", lambda: values.abs().topk(count, sorted=False)),
        Timed("torch's fp16 hook", "encode", lambda: values.to(torch.float16).div_(2)),
        Timed("torch's fp16 hook", "decode", lambda: target.copy_(half)),
    ]
    for label, (method, given) in METHODS.items():
        codec = CODECS[method](resolve(method, given))
        assert isinstance(codec, OneRound)
        timed += _both_ways(label, codec, values, target)
    for label, (method, given) in WHOLE.items():
        codec = CODECS[method](resolve(method, given))
        timed.append(Timed(label, "both", lambda codec=codec: _exchanged(codec, values)))
    return timed


def _both_ways(
    label: str, codec: OneRound, values: torch.Tensor, into: torch.Tensor
) -> list[Timed]:
    wire = codec.encode(values, DRAW)
    return [
        Timed(label, "encode", lambda: codec.encode(values, DRAW)),
        Timed(label, "decode", lambda: codec.add_decoded(wire, into.zero_(), 1.0, DRAW)),
    ]


def _exchanged(codec: Codec, values: torch.Tensor) -> None:
    bucket = Bucket(0, values.clone(), (0,), (values.shape,))
    run_in_lockstep([codec.exchange(bucket, NoMemory(), DRAW, 1)])


def measure(num_bytes: int, rounds: int) -> dict[tuple[str, str], float]:
    """Return the best seconds of each thing, by label and stage."""
    values = torch.randn(num_bytes // 4, generator=torch.Generator().manual_seed(0))
    best: dict[tuple[str, str], float] = {}
    for _ in range(rounds):
        for thing in things_to_time(values):
            began = time.perf_counter()
            thing.run()
            took = time.perf_counter() - began
            key = (thing.label, thing.stage)
            best[key] = min(took, best.get(key, took))
    return best


def main() -> None:
    """Print a table for each size."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--mb", type=int, nargs="*", help="sizes; default 1, 25 and 100")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for num_bytes in [mb * MB for mb in given.mb] if given.mb else SIZES:
        best = measure(num_bytes, given.rounds)
        report(num_bytes, best)
        if num_bytes >= JUDGED_FROM:
            ratio = best["8 bit nearest", "encode"] / best[COPY, ""]
            print(f"8 bit nearest encode: {against_limit(ratio, TARGET, 'times the copy')}")


def report(num_bytes: int, best: dict[tuple[str, str], float]) -> None:
    """Print GB/s of gradient, and how many times as long as the copy."""
    copy_s = best[COPY, ""]
    print(f"\n{num_bytes // MB} MB of float32, one core; best of each")
    print(f"{'':20}{'encode':>10}{'':>10}{'decode':>12}")
    for label in dict.fromkeys(label for label, _ in best):
        cells = "".join(
            f"{num_bytes / best[label, stage] / 1e9:8.2f} GB/s{best[label, stage] / copy_s:6.1f}x"
            if (label, stage) in best
            else " " * 20
            for stage in (("",) if label == COPY else ("both",) if label in WHOLE else STAGES)
        )
        print(f"{label:20}{cells}")


STAGES = ("encode", "decode")


if __name__ == "__main__":
    main()
