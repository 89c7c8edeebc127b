"""Each way to divide a model, on eight ranks, for `benchmarks.model_parallel_prediction`.

Small transformers, whose linear layers take as long as on a device of 0.8 GFLOP/s; see
`benchmarks.paced_layers`.
"""

from scalebench import Case, Context, Expert, LayerWise, Mesh, Plain, StepPlan, Suite, Tensor

SECONDS_PER_MULTIPLICATION = 2.5e-9
GPT, DEEP, MOE = (f"benchmarks.model_parallel_suite:{name}" for name in ("gpt", "deep", "moe"))


def gpt(shard):
    """Return a transformer of one layer; heads, tokens and vocabulary are multiples of eight."""
    return _gpt("one-layer", 1, shard)


def deep(shard):
    """Return one of eight layers, one for each rank."""
    return _gpt("eight-layers", 8, shard)


def moe(shard):
    """Return one of one layer with eight experts."""
    from scalebench.spec.presets import MoeShape
    from scalebench.worker.workloads.transformers import build_moe

    shape = MoeShape(
        name="eight-experts", layers=1, heads=8, width=64, context=64, batch_size=16, experts=8
    )
    return paced(build_moe(shape, shard), shape.layers)


def _gpt(name, layers, shard):
    from scalebench.spec.presets import GptShape
    from scalebench.worker.workloads.transformers import build_gpt

    shape = GptShape(name=name, layers=layers, heads=8, width=64, context=64, batch_size=16)
    return paced(build_gpt(shape, shard), layers)


def paced(workload, layers):
    """Have the linear layers wait; those of several blocks together as long as those of one."""
    from benchmarks.paced_layers import pace

    pace(workload.module, SECONDS_PER_MULTIPLICATION / layers)
    return workload


SUITE = Suite(
    name="model-parallel",
    question="Does the cost model predict eight hosts that divide a model?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="tensor", strategy=Tensor()),
        Case(name="tensor-sequence", strategy=Tensor(sequence=True, loss=True)),
        Case(name="ulysses", strategy=Context()),
        Case(name="ring", strategy=Context(method="ring")),
        Case(name="expert", strategy=Expert(), workload=MOE),
        Case(name="layer-wise", strategy=LayerWise(), workload=DEEP),
        Case(name="shard-tensor", strategy=Mesh(shard=None, tensor=2, sequence=True, loss=True)),
    ),
    workload=GPT,
    steps=StepPlan(window_s=2.0, max_warmup_steps=6, max_warmup_s=6.0, rounds_s=0.5, max_rounds=2),
    batch_size=64,
    repeats=1,
)
