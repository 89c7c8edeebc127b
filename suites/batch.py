"""Do larger batches reach a loss sooner, and with which learning rate?"""

from scalebench import Case, Ddp, Plain, Race, Recipe, Suite

BATCH = 4

# Each at the best of a grid of rates, four a factor of two apart for AdamW and LAMB, a factor of
# four for LARS: the lowest loss after 4096 samples with one seed.
BASE = Recipe(optimizer="adamw", learning_rate=1e-3, warmup_samples=256)
LAMB = Recipe(optimizer="lamb", learning_rate=1e-2, warmup_samples=256)
LARS = Recipe(optimizer="lars", learning_rate=4.0, warmup_samples=256, weight_decay=1e-4)

SUITE = Suite(
    name="batch",
    question="Do larger batches reach the same loss sooner here, and with which learning rate?",
    cases=(
        Case(name="plain", strategy=Plain(), batch_size=BATCH, recipe=BASE),
        Case(name="batch-4", strategy=Ddp(), batch_size=BATCH, recipe=BASE),
        *(
            Case(
                name=f"batch-{factor * BATCH}-{rule}",
                strategy=Ddp(),
                batch_size=factor * BATCH,
                recipe=BASE.for_batch(factor, rule),
                optional=factor == 2 and rule != "kept",
            )
            for factor in (2, 4, 8)
            for rule in ("kept", "sqrt", "linear")
        ),
        Case(name="lamb-32", strategy=Ddp(), batch_size=8 * BATCH, recipe=LAMB),
        Case(name="lars-32", strategy=Ddp(), batch_size=8 * BATCH, recipe=LARS),
    ),
    workload="gpt",
    race=Race(samples=4096, evaluate_every=256),
    repeats=3,
)
