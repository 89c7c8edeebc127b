"""Do larger batches reach a loss sooner, and with which learning rate?"""

from scalebench import Case, Ddp, Plain, Race, Recipe, Suite

BATCH = 16
BASE = Recipe(optimizer="adamw", learning_rate=1e-3, warmup_samples=512)
LAMB = Recipe(optimizer="lamb", learning_rate=2e-3, warmup_samples=512)
LARS = Recipe(optimizer="lars", learning_rate=4.0, warmup_samples=512, weight_decay=1e-4)

SUITE = Suite(
    name="batch",
    question="Do larger batches reach the same loss sooner here, and with which learning rate?",
    cases=(
        Case(name="plain", strategy=Plain(), batch_size=BATCH, recipe=BASE),
        Case(name="batch-16", strategy=Ddp(), batch_size=BATCH, recipe=BASE),
        *(
            Case(
                name=f"batch-{factor * BATCH}-{rule}",
                strategy=Ddp(),
                batch_size=factor * BATCH,
                recipe=BASE.for_batch(factor, rule),
                optional=(factor, rule) in ((2, "sqrt"), (2, "linear"), (4, "kept")),
            )
            for factor in (2, 4, 8)
            for rule in ("kept", "sqrt", "linear")
        ),
        Case(name="lamb-128", strategy=Ddp(), batch_size=8 * BATCH, recipe=LAMB),
        Case(name="lars-128", strategy=Ddp(), batch_size=8 * BATCH, recipe=LARS),
    ),
    workload="gpt",
    race=Race(samples=4096, evaluate_every=256),
    repeats=3,
)
