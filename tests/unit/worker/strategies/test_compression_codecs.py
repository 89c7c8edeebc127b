import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from scalebench.spec.strategies.data_parallel import METHODS, resolve
from scalebench.worker.strategies.compression.codec import Bucket, Draw, NoMemory, num_kept
from scalebench.worker.strategies.compression.emulation import run_in_lockstep
from scalebench.worker.strategies.compression.methods import CODECS, new_memory
from tests.examples import cases, examples

pytestmark = pytest.mark.slow


VARIANTS = {
    "fp16": {},
    "bf16": {},
    **{f"quantise-{bits}": {"bits": bits} for bits in range(1, 9)},
    "quantise-8-stochastic": {"rounding": "stochastic"},
    "quantise-2-stochastic": {"bits": 2, "rounding": "stochastic"},
    "sign": {},
    "terngrad": {},
    "qsgd-2": {"bits": 2},
    "qsgd-8": {"bits": 8},
    "top-k": {"ratio": 0.1},
    "random-k": {"ratio": 0.1},
    "random-k-scaled": {"ratio": 0.1, "error_feedback": False},
    "random-projection": {},
    "random-projection-scaled": {"error_feedback": False},
    "threshold": {"threshold": 0.5},
    "dgc": {"ratio": 0.1, "clip_norm": 1e9},
    "count-sketch": {"ratio": 0.1},
}
"""Name of a test → parameters; the method is what the name begins with."""


def method_of(variant):
    return max((m for m in METHODS if variant.startswith(m)), key=len)


def parameters(variant, **more):
    method = method_of(variant)
    takes_chunk = "chunk" in METHODS[method].defaults
    chunk = {"chunk": 16} if takes_chunk else {}
    return resolve(method, {**chunk, **VARIANTS[variant], **more})


def codec_of(variant):
    return CODECS[method_of(variant)](parameters(variant))


def bucket_of(values, index=1):
    gradient = torch.as_tensor(values, dtype=torch.float32).clone()
    return Bucket(index, gradient, (0,), (gradient.shape,))


def decoded(codec, wire, numel, draw):
    into = torch.zeros(numel)
    codec.add_decoded(wire, into, 1.0, draw)
    return into


def mean_by(codec, ranks, memories=None, step=5):
    buckets = [bucket_of(values) for values in ranks]
    rounds = [
        codec.exchange(bucket, memory, Draw(3, step, 1, rank), len(ranks))
        for rank, (bucket, memory) in enumerate(
            zip(buckets, memories or [NoMemory()] * len(ranks), strict=True)
        )
    ]
    run_in_lockstep(rounds)
    for bucket in buckets[1:]:
        assert torch.equal(as_bits(bucket.gradient), as_bits(buckets[0].gradient))
    return buckets[0].gradient


def as_bits(values):
    return values.view(torch.int32)


def normal(numel, seed=0):
    return torch.randn(numel, generator=torch.Generator().manual_seed(seed))


vectors = (
    st.integers(0, 70)
    .flatmap(lambda n: arrays("float32", n, elements=st.floats(-1e4, 1e4, width=32)))
    .map(torch.from_numpy)
)


def chunk_reduced(values, chunk, reduce):
    return (
        torch.cat([reduce(c).expand(len(c)) for c in values.split(chunk)])
        if len(values)
        else values
    )


def error_bound(variant, x):
    """What the method's docstring allows each element to be wrong by."""
    method, given = method_of(variant), parameters(variant)
    rounding = 1e-36 + (1e-5 * x.abs().max() if len(x) else 0)  # subnormal steps are lost
    if method in ("fp16", "bf16"):
        unit = {"fp16": 2.0**-11, "bf16": 2.0**-8}[method]
        return x.abs() * unit * 1.01 + 6e-8
    if method == "quantise":
        step = chunk_reduced(x, 16, lambda c: (c.max() - c.min()) / (2 ** given["bits"] - 1))
        return step * (0.5 if given["rounding"] == "nearest" else 1) + rounding
    if method == "sign":
        return (x.abs() - chunk_reduced(x, 16, lambda c: c.abs().mean())).abs() + rounding
    if method == "terngrad":
        return chunk_reduced(x, 16, lambda c: c.abs().max()) + rounding
    if method == "qsgd":
        return (
            chunk_reduced(x, 16, torch.linalg.vector_norm) / (2 ** (given["bits"] - 1) - 1)
            + rounding
            + 1e-18  # squares of what is smaller are no float32: the norm loses them
        )
    if method == "threshold":
        return torch.full_like(x, given["threshold"])
    if method == "random-projection":
        enlarged = 1 if given["error_feedback"] else 10 * 2  # the longest stratum, rounded up
        return enlarged * torch.linalg.vector_norm(x).expand(len(x)) + rounding + 1e-18
    if variant == "random-k-scaled":
        return x.abs() * -(-len(x) // max(1, num_kept(len(x), 0.1))) + rounding
    return x.abs()  # sparse: an element is exact, or it is left out


@cases("variant", *VARIANTS)
@settings(max_examples=examples(30))
@given(x=vectors)
def test_the_round_trip_of_one_rank_is_within_the_bound(variant, x):
    got = mean_by(codec_of(variant), [x])
    assert bool(((got - x).abs() <= error_bound(variant, x)).all())


UNBIASED = ["quantise-8-stochastic", "quantise-2-stochastic", "terngrad", "qsgd-2", "qsgd-8",
            "random-k-scaled"]  # fmt: skip
NUM_DRAWS = 2000
FALSE_ALARMS = 1e-6
"""Chance that a test of an unbiased method fails, over all its elements (Bonferroni)."""


def mean_is_off(codec, x, width):
    """Whether the mean of many decodings is further from x than chance allows.

    Hoeffding's inequality, which holds for any distribution between two places ``width`` apart.
    """
    draws = [Draw(11, step, 0, 0) for step in range(NUM_DRAWS)]
    mean = sum(decoded(codec, codec.encode(x, d), len(x), d).double() for d in draws) / NUM_DRAWS
    allowed = math.sqrt(math.log(2 * len(x) / FALSE_ALARMS) / (2 * NUM_DRAWS))
    return bool(((mean - x.double()).abs() > allowed * width.double()).any())


@cases("variant", *UNBIASED)
def test_the_mean_over_many_draws_is_the_gradient(variant):
    x = normal(45)
    assert not mean_is_off(codec_of(variant), x, error_bound(variant, x))


@cases("shape", "normal", "one large")
@cases("numel, padded", (64, 64), (50, 64), (1500, 2048))
def test_a_random_projection_has_the_mean_variance_and_norm_of_its_formulas(shape, numel, padded):
    """Johnson-Lindenstrauss: the norm of k combinations has a relative variance below 2/k."""
    every, draws = 8, [Draw(7, step, 0, 0) for step in range(400)]
    x = normal(numel) if shape == "normal" else torch.nn.functional.one_hot(torch.tensor(3), numel)
    x, num_sent = x.double() / torch.linalg.vector_norm(x.double()), padded // every
    codec = CODECS["random-projection"]({"ratio": 1 / every, "error_feedback": False})
    codes = [codec.encode(x, draw) for draw in draws]
    errors = torch.stack(
        [decoded(codec, c, numel, d).double() - x for c, d in zip(codes, draws, strict=True)]
    )
    assert num_sent == len(codes[0])
    norms = torch.tensor([float(c.double().square().sum()) / every for c in codes])
    spread = (2 / num_sent / len(draws)) ** 0.5  # of the mean of the norms
    assert abs(float(norms.mean()) - 1) <= 5 * spread
    assert float(norms.var()) <= 1.5 * 2 / num_sent
    if numel == padded:  # the whole of a block is decoded
        squared = float(errors.square().sum(dim=1).mean())
        assert abs(squared - (every - 1)) <= 5 * (every - 2) * spread + 1e-5
    assert float(errors.mean(dim=0).square().sum()) <= 2 * (every - 1) / len(draws)


@cases("variant", *[v for v in VARIANTS if v != "dgc"])
@settings(max_examples=15)
@given(seed=st.integers(0, 10**6), numel=st.sampled_from([1, 7, 45, 128]))
def test_error_feedback_loses_nothing(variant, seed, numel):
    codec = CODECS[method_of(variant)](parameters(variant, error_feedback=True))
    memories = [new_memory(parameters(variant, error_feedback=True), 2) for _ in range(2)]
    total, sent = torch.zeros(numel, dtype=torch.float64), torch.zeros(numel, dtype=torch.float64)
    for step in range(6):
        ranks = [normal(numel, seed + 10 * step + rank) for rank in range(2)]
        total += sum(g.double() for g in ranks) / 2
        sent += mean_by(codec, ranks, memories, step).double()
    kept = sum(memory.corrected(bucket_of(0 * total)).double() for memory in memories) / 2
    # Half precision divides by the number of ranks on the wire and rounds there once more.
    rounding = {"fp16": 1e-3, "bf16": 1e-2}.get(variant, 1e-4)
    assert torch.allclose(sent + kept, total, atol=rounding * float(1 + sent.abs().max()))


@cases("variant", *VARIANTS)
@cases("bad", math.nan, math.inf, -math.inf)
@cases("place", 0, 36)
def test_what_is_not_finite_is_never_hidden(variant, bad, place):
    healthy = normal(37)
    ill = healthy.clone()
    ill[place] = bad
    got = mean_by(codec_of(variant), [healthy, ill])
    assert not bool(got.isfinite().all())


@cases(
    "method, given, words",
    ("zip", {}, "Valid: bf16, count-sketch"),
    ("top-k", {"ratio": 0.0}, "ratio is 0.0; give more than 0 and at most 1"),
    ("top-k", {"ratio": 1.5}, "ratio is 1.5"),
    ("quantise", {"bits": 9}, "bits is 9; give a whole number from 1 to 8"),
    ("quantise", {"bits": 0}, "bits is 0"),
    ("qsgd", {"bits": 1}, "bits is 1; qsgd needs 2 to 8"),
    ("quantise", {"chunk": 12}, "chunk is 12; give a multiple of 8"),
    ("fp16", {"ratio": 0.1}, "fp16 has no ratio; it takes error_feedback"),
    ("none", {"bits": 2}, "none has no bits; it takes no parameter"),
    ("powersgd", {"start_step": 1}, "start_step is 1; give at least 2"),
)
def test_wrong_parameters_are_told_in_one_line(method, given, words):
    with pytest.raises(ValueError) as told:
        resolve(method, given)
    assert words in str(told.value) and "\n" not in str(told.value)
