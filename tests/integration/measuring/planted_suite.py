"""Workloads with planted losses over DDP: one bucket for all gradients, or one for every layer."""

from scalebench import Case, Ddp, Plain, StepPlan, Suite

MANY = Ddp(bucket_mb=0.1, gradient_as_bucket_view=False)
CASES = {
    **dict.fromkeys(("layered", "computes_longer", "waits_for_batches"), (Ddp(), 32)),
    **dict.fromkeys(("sleeps_on_rank_1", "sleeps_on_rank_0_with_buffers"), (Ddp(), 32)),
    "last_bucket_late": (MANY, 32),
    "first_bucket_late": (MANY, 1024),
}


def case(name, workload, strategy):
    batch = CASES[workload][1]
    return Case(name=name, strategy=strategy, workload=f"planted:{workload}", batch_size=batch)


SUITE = Suite(
    name="planted",
    question="Is the time that was planted found, and under its right name?",
    cases=(
        *(case(f"plain-{workload}", workload, Plain()) for workload in CASES),
        *(case(workload, workload, strategy) for workload, (strategy, _) in CASES.items()),
    ),
    steps=StepPlan(window_s=0.5, rounds_s=3.0, max_warmup_steps=20),
    repeats=1,
)
