"""What does each method of gradient compression send, cost and do to the loss?"""

from scalebench import Case, Compressed, Plain, StepPlan, Suite

SUITE = Suite(
    name="compression",
    question="What does each compression method really send, cost and do to the loss?",
    cases=(
        Case(name="plain", strategy=Plain()),
        Case(name="none", strategy=Compressed(method="none")),
        Case(name="noop", strategy=Compressed(method="noop")),
        Case(name="fp16", strategy=Compressed(method="fp16")),
        Case(name="quantise-8bit", strategy=Compressed(method="quantise")),
        Case(name="sign-ef", strategy=Compressed(method="sign")),
        Case(name="topk-1pct", strategy=Compressed(method="top-k")),
        Case(name="powersgd", strategy=Compressed(method="powersgd")),
        Case(name="bf16", strategy=Compressed(method="bf16"), optional=True),
        Case(
            name="quantise-4bit",
            strategy=Compressed(method="quantise", bits=4, error_feedback=True),
            optional=True,
        ),
        Case(
            name="quantise-2bit",
            strategy=Compressed(method="quantise", bits=2, chunk=64, rounding="stochastic"),
            optional=True,
        ),
        Case(
            name="quantise-1bit",
            strategy=Compressed(method="quantise", bits=1, chunk=64, rounding="stochastic"),
            optional=True,
        ),
        Case(
            name="quantise-8bit-stochastic",
            strategy=Compressed(method="quantise", rounding="stochastic"),
            optional=True,
        ),
        Case(name="terngrad", strategy=Compressed(method="terngrad"), optional=True),
        Case(name="qsgd-4bit", strategy=Compressed(method="qsgd"), optional=True),
        Case(name="topk-0.1pct", strategy=Compressed(method="top-k", ratio=0.001), optional=True),
        Case(name="randomk-1pct", strategy=Compressed(method="random-k"), optional=True),
        Case(
            name="projection-10pct",
            strategy=Compressed(method="random-projection"),
            optional=True,
        ),
        Case(name="threshold", strategy=Compressed(method="threshold"), optional=True),
        Case(name="dgc-1pct", strategy=Compressed(method="dgc"), optional=True),
        Case(name="powersgd-rank4", strategy=Compressed(method="powersgd", rank=4), optional=True),
        Case(
            name="powersgd-batched",
            strategy=Compressed(method="powersgd-batched"),
            optional=True,
        ),
        Case(name="count-sketch", strategy=Compressed(method="count-sketch"), optional=True),
    ),
    workload="gpt",
    steps=StepPlan(window_s=0.5, rounds_s=0.5),
    repeats=3,
)
