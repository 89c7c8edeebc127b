"""The phrases that every rendering shares: labels, intervals, sizes, one-line texts.

A run's strings come from other machines and other people's code. `plain` takes out of them what
could steer a terminal or reorder a line; escaping for HTML or Markdown is the renderer's part.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from scalebench import units
from scalebench.grouping import by_key
from scalebench.records.rows.script import Wrapper
from scalebench.records.summary import Estimate, Row
from scalebench.report.words.terms import plain as plain
from scalebench.spec import AXES

TIMES = "\N{MULTIPLICATION SIGN}"
DASH = "\N{EN DASH}"
MINUS = "\N{MINUS SIGN}"

WHOLE_REASON = 240
"""Characters of a reason in a sentence; it says what to do, mostly at its end."""

CaseKey = tuple[str, str]

STRATEGY_NAMES = {
    "plain": "Plain model",
    "ddp": "DDP",
    "fsdp": "FSDP",
    "fsdp1": "FSDP1",
    "zero1": "ZeRO-1",
    "pipeline": "Pipeline",
    "layerwise": "Layer by layer",
    "tensor": "Tensor parallel",
    "mesh": "Mesh",
    "context": "Context parallel",
    "expert": "Expert parallel",
    "compressed": "DDP",
    "parameter-server": "Parameter server",
    "pipedream": "PipeDream",
    "pipedream-2bw": "PipeDream-2BW",
    "fedavg": "FedAvg",
    "elastic": "Elastic averaging",
    "gossip": "Gossip over a ring",
    "diloco": "DiLoCo",
    "local-sgd": "Local SGD",
    "deepspeed": "DeepSpeed",
    "accelerate": "Accelerate",
    "fabric": "Lightning Fabric",
    "fairscale": "FairScale",
    "horovod": "Horovod",
    "script": "Your script",
    "imported": "The job",
}

SCHEDULE_NAMES = {
    "gpipe": "GPipe",
    "1f1b": "1F1B",
    "interleaved-1f1b": "interleaved 1F1B",
    "looped-bfs": "looped BFS",
    "zero-bubble": "zero bubble",
    "zbv": "ZBV",
    "dualpipev": "DualPipeV",
}

SPLIT_PHRASES = {
    "measured": "layers cut by measured time",
    "even": "layers cut by their number",
    "unbalanced": "layers cut badly on purpose",
}

PUSH_PHRASES = {
    "backward": "gradients pushed in the order of the backward pass",
    "priority": "gradients pushed in chunks, the next forward pass's first",
}
PLUGIN_PHRASES = {"ddp": "DDP", "fsdp2": "FSDP2", "deepspeed": "DeepSpeed"}

METHOD_PHRASES = {"none": "exact all-reduce", "noop": "no communication", "ulysses": "Ulysses"}


UNKNOWN_SCALING = ("unknown scaling", "strong or weak scaling not known")
SAMPLES_NOT_COUNTED = "samples not counted"
BATCH_NOT_KNOWN = "batch not known"


def counts_samples(row: Row) -> bool:
    """Whether a row's batch and throughput are in samples; a script's may be in steps."""
    return not {SAMPLES_NOT_COUNTED, BATCH_NOT_KNOWN} & set(row.stamps)


def batches(row: Row, text: str) -> str:
    """Put a row's batch, of all ranks and of one, into a text; nothing is known: a dash."""
    known = counts_samples(row) and row.global_batch
    return text.format(row.global_batch, row.rank_batch or "<1") if known else DASH


def _number_of(value: Any, phrase: str) -> str | None:
    known = isinstance(value, int | float) and not isinstance(value, bool)
    return phrase.format(value) if known else None


SETTING_PHRASES: dict[str, Callable[[Any], str | None]] = {
    "bucket_mb": lambda v: _number_of(v, "{:g} MiB buckets"),
    "method": lambda v: METHOD_PHRASES.get(str(v), str(v)),
    "bits": lambda v: _number_of(v, "{:g} bit"),
    "ratio": lambda v: _number_of(v, "ratio {:g}"),
    "rank": lambda v: _number_of(v, "rank {:g}"),
    "rounding": lambda v: "stochastic rounding" if v == "stochastic" else None,
    "error_feedback": lambda v: "error feedback" if v is True else None,
    "accumulate": lambda v: None if v == 1 else _number_of(v, "{:g} microbatches"),
    "static_graph": lambda v: "static graph" if v is True else None,
    "gradient_as_bucket_view": lambda v: "gradients copied to buckets" if v is False else None,
    "balance": lambda v: "shares by measured speed" if v == "measured" else None,
    "autocast": lambda v: {True: "bfloat16 autocast", "float16": "float16, loss scaled"}.get(v),
    "compile": lambda v: "compiled" if v is True else None,
    "checkpointing": lambda v: (
        {True: "activations recomputed", "selective": "activations recomputed but for products"}
    ).get(v if isinstance(v, bool | str) else None),
    "reshard_after_forward": lambda v: "not resharded after forward" if v is False else None,
    "shard_size": lambda v: (
        "nothing sharded" if v == 1 else _number_of(v, "sharded over at most {:g} ranks")
    ),
    "min_num_params": lambda v: _number_of(v, "groups of at least {:,} parameters"),
    "prefetch": lambda v: _number_of(v, "{:g} groups gathered ahead"),
    "param_dtype": lambda v: "bfloat16 parameters" if v == "bfloat16" else None,
    "reduce_dtype": lambda v: "bfloat16 reduction" if v == "bfloat16" else None,
    "cpu_offload": lambda v: "offloaded to the host" if v is True else None,
    "pipeline": lambda v: None if v == 1 else _number_of(v, "pipeline of {:g} ranks"),
    "schedule": lambda v: SCHEDULE_NAMES.get(str(v)),
    "microbatches": lambda v: None if v == 1 else _number_of(v, "{:g} microbatches"),
    "chunks": lambda v: None if v == 1 else _number_of(v, "{:g} stages on a rank"),
    "split": lambda v: SPLIT_PHRASES.get(str(v)),
    "data_parallel": lambda v: None if v == 1 else _number_of(v, "{:g} pipelines side by side"),
    "size": lambda size: f"groups of {size} ranks" if size else None,
    "sequence": lambda on: "sequence divided" if on else None,
    "data": lambda v: None if v == 1 else _number_of(v, "{:g} replicas"),
    "shard": lambda v: (
        "FSDP2 shards" if v is None else _number_of(v, "{:g} FSDP2 shards") if v != 1 else None
    ),
    "context": lambda v: None if v == 1 else _number_of(v, "{:g} ranks divide a sequence"),
    "tensor": lambda v: None if v == 1 else _number_of(v, "{:g} ranks divide a layer"),
    "loss": lambda on: "loss divided" if on else None,
    "period": lambda v: None if v == 1 else _number_of(v, "every {:g} steps"),
    "outer_rate": lambda v: _number_of(v, "outer rate {:g}"),
    "outer_momentum": lambda v: _number_of(v, "outer momentum {:g}"),
    "moving_rate": lambda v: _number_of(v, "moving rate {:g}"),
    "clients": lambda v: _number_of(v, "{:g} clients"),
    "clients_per_rank": lambda v: _number_of(v, "{:g} at a time on a rank"),
    "concentration": lambda v: _number_of(v, "divided unevenly ({:g})"),
    "servers": lambda v: None if v == 1 else _number_of(v, "{:g} servers"),
    "staleness_bound": lambda v: (
        "synchronous" if v == 0 else _number_of(v, "at most {:g} steps ahead") or "asynchronous"
    ),
    "backup_workers": lambda v: _number_of(v, "{:g} backup workers") if v else None,
    "pushes": lambda v: PUSH_PHRASES.get(str(v)),
    "staleness_aware": lambda on: "smaller steps for stale gradients" if on else None,
    "synchronous_steps": lambda v: _number_of(v, "after {:g} synchronous steps") if v else None,
    "experts": lambda number: f"{number} experts" if number else None,
    "expert": lambda v: None if v == 1 else _number_of(v, "{:g} ranks divide the experts"),
    "order": lambda axes: None if list(axes) == list(AXES) else f"{plain(axes[0], 20)} outermost",
    "top_k": lambda number: f"top-{number}" if number else None,
    "capacity_factor": lambda v: _number_of(v, "capacity {:g}") if v else None,
    "plugin": lambda v: PLUGIN_PHRASES.get(str(v)),
    "sharding": lambda v: PLUGIN_PHRASES.get(str(v)),
    "stage": lambda v: _number_of(v, "ZeRO stage {:g}"),
    "offload": lambda on: "offloaded to the host" if on is True else None,
    "compression": lambda v: "sent as float16" if v == "fp16" else None,
    "as_shipped": lambda on: "as shipped" if on is True else None,
    "dropless": lambda on: "no token dropped" if on else None,
}


IDLE_WITH = {"pipeline": ("schedule", "microbatches", "chunks"), "context": ("method",)}
"""Dimension of a mesh → settings that mean nothing where it has one rank."""


def case_key(row: Row) -> CaseKey:
    """Return what identifies a case within a run."""
    return (row.suite, row.case)


def by_suite(rows: Iterable[Row]) -> dict[str, list[Row]]:
    """Group rows by suite, in the order in which the suites first appear."""
    return by_key((row.suite, row) for row in rows)


def by_case(rows: Iterable[Row]) -> dict[CaseKey, list[Row]]:
    """Group rows by (suite, case), each group sorted by world size."""
    groups = by_key((case_key(row), row) for row in rows)
    return {key: sorted(group, key=lambda r: r.world_size) for key, group in groups.items()}


def strategy_label(row: Row) -> str:
    """Name the strategy and the settings that tell it from its neighbours."""
    if row.wrappers:
        told = dict.fromkeys(_wrapper(one) for one in row.wrappers if not _says_nothing(one, row))
        return f"{STRATEGY_NAMES['script']} ({', '.join(told)})"
    return settings_label(row.strategy, row.strategy_settings)


def settings_label(strategy: str, settings: Mapping[str, Any]) -> str:
    """Name a strategy and its settings: ``"DDP (25 MiB buckets, 4 microbatches)"``."""
    name = STRATEGY_NAMES.get(strategy, plain(strategy, 40))
    idle = {key for size, keys in IDLE_WITH.items() if settings.get(size) == 1 for key in keys}
    phrases = [
        say(settings[key])
        for key, say in SETTING_PHRASES.items()
        if key in settings and key not in idle
    ]
    told = [phrase for phrase in phrases if phrase]
    return f"{name} ({', '.join(told)})" if told else name


WRAPPER_NAMES = {
    "DistributedDataParallel": "DDP",
    "FSDPModule": "FSDP2",
    "FullyShardedDataParallel": "FSDP1",
    "DeepSpeedEngine": "DeepSpeed",
    "ZeroRedundancyOptimizer": "ZeRO-1 (ZeroRedundancyOptimizer)",
}


def _wrapper(found: Wrapper) -> str:
    """Name what a script has wrapped a module in: ``"DDP of 25 MiB buckets"``."""
    if found.kind == "DTensor":
        return _layout(found)
    if found.kind == "_PipelineSchedule":
        cut = f" with {found.microbatches} microbatches" if found.microbatches else ""
        return f"pipeline schedule {plain(found.schedule or '', 40)}{cut}"
    if found.kind == "_PipelineStageBase":
        return f"a pipeline of {found.of} stages" if found.of else "a pipeline"
    name = WRAPPER_NAMES.get(found.kind, plain(found.kind, 40))
    if found.stage is not None:
        name += f" ZeRO-{found.stage}" if found.stage else " without ZeRO"
    if found.sharding:
        name += f" {plain(found.sharding, 40)}"
    if found.bucket_bytes:
        name += f" of {found.bucket_bytes / 2**20:g} MiB buckets"
    if found.hook:
        name += f" with {plain(found.hook, 40)}"
    return f"{name} with find_unused_parameters" if found.find_unused_parameters else name


def _says_nothing(found: Wrapper, row: Row) -> bool:
    by_fsdp = any(one.kind == "FSDPModule" for one in row.wrappers or ())
    return by_fsdp and found.kind == "DTensor" and len(_sharded_over(found)) < 2


def _layout(found: Wrapper) -> str:
    """Name a layout of parameters over a mesh: ``"parameters sharded over tp (2)"``."""
    sharded = _sharded_over(found)
    return f"parameters sharded over {joined(sharded)}" if sharded else "parameters replicated"


def _sharded_over(found: Wrapper) -> list[str]:
    dimensions = (found.mesh or {}).items()
    return [
        f"{plain(name, 20)} ({size})"
        for (name, size), how in zip(dimensions, found.placements or (), strict=False)
        if "shard" in how.lower()
    ]


def of_logs(rows: Iterable[Row]) -> bool:
    """Tell whether all rows were read from logs, where no scalebench ran."""
    return all(row.strategy == "imported" for row in rows)


def is_baseline(row: Row) -> bool:
    """Whether the row is the bare model that efficiencies are measured against."""
    return row.strategy == "plain"


def ranks(row: Row) -> str:
    """Say how many of what: ``"2 CPU ranks"``, ``"8 GPUs"``, ``"4 virtual hosts"``."""
    num_hosts = len(row.link_bit_per_s or ())
    if row.virtual_hosts and num_hosts not in (0, row.world_size):
        return f"{row.world_size} ranks on {num_hosts} virtual host{'' if num_hosts == 1 else 's'}"
    if row.virtual_hosts:
        noun = "virtual host"
    elif row.device == "cpu":
        noun = "CPU rank"
    else:
        noun = "rank" if row.oversubscribed else "GPU"
    return f"{row.world_size} {noun}{'' if row.world_size == 1 else 's'}"


class Placed(Protocol):
    """A row, or something else about a case at a number of ranks."""

    @property
    def case(self) -> str:
        """Its name."""

    @property
    def world_size(self) -> int:
        """N."""


def place(row: Placed) -> str:
    """Name a row: ``"ddp-25mb, N=2"``."""
    return place_name(row.case, row.world_size)


def place_name(case: str, world_size: int) -> str:
    """Name what is known by case and size alone, like a row."""
    return f"{plain(case, 64)}, N={world_size}"


def scarce(row: Row) -> str:
    """Name what an oversubscribed row has too few of."""
    if row.cpus_per_rank is not None or row.cpu_shares:
        return "CPU shares"
    return "cores" if row.device == "cpu" else "GPUs"


def joined(items: Sequence[str], last: str = "and") -> str:
    """Write a list as prose: ``"a, b and c"``."""
    if len(items) < 2:
        return "".join(items)
    return f"{', '.join(items[:-1])} {last} {items[-1]}"


def capital(text: str) -> str:
    """Write a text with a large first letter."""
    return text[:1].upper() + text[1:]


def as_sentence(text: str) -> str:
    """Return a text that ends in a full stop as it is, any other as a sentence."""
    return text if text.endswith(".") else f"{capital(text)}."


def signed(value: float, places: int = 1) -> str:
    """Write a number that may be negative, with a true minus sign and without a negative zero."""
    text = f"{value:.{places}f}"
    return text.replace("-", MINUS) if float(text) else text.lstrip("-")


def decimals(text: str) -> int:
    """Return how many digits stand behind the point of a formatted number."""
    return len(text.partition(".")[2])


def point(estimate: Estimate, scale: float = 1.0) -> str:
    """Write the point of an estimate with the digits that its interval supports."""
    half = estimate.half_width
    return units.significant(estimate.value * scale, half * scale if half else None)


def seconds(estimate: Estimate) -> str:
    """Write a duration with the digits that its interval supports."""
    return units.seconds(estimate.value, estimate.half_width)


def count(estimate: Estimate) -> str:
    """Write a count with the digits that its interval supports."""
    return units.count(estimate.value, estimate.half_width)


def percent(estimate: Estimate) -> str:
    """Write a ratio in percent with its interval: ``"85.6 ± 3.5 %"``."""
    return f"{plus_minus(estimate, 100)} %"


def span_s(low_s: float | None, high_s: float | None) -> str:
    """Write an interval of durations, a unit that both share once; a dash without one."""
    if low_s is None or high_s is None:
        return DASH
    low, high = units.seconds(low_s), units.seconds(high_s)
    number, unit = low.rsplit(" ", 1)
    return f"{number}–{high}" if high.endswith(f" {unit}") else f"{low} to {high}"


def surely_above(one: Estimate | None, other: Estimate | None) -> bool:
    """Whether an interval lies above another; not where one of the two is not known."""
    if one is None or other is None or one.low is None or other.high is None:
        return False
    return one.low > other.high


FAR = 10
"""An upper end beyond so many times the value is written ``over``: all of its digits are noise."""


def interval(estimate: Estimate, scale: float = 1.0) -> str | None:
    """Write the interval to the same place as the point; None without one, or where it is exact."""
    if not estimate.half_width:
        return None
    places = decimals(point(estimate, scale))
    low, high = (end * scale for end in estimate.reach)
    dash = " to " if low < 0 else DASH
    most = FAR * estimate.value * scale
    upper = f"over {units.significant(most)}" if high > most > 0 else f"{high:.{places}f}"
    return f"{low:.{places}f}{dash}{upper}"


WIDE = 0.25
"""Half-width over value beyond which ``±`` would hide that the ends are not equally far."""


def too_wide(estimate: Estimate) -> bool:
    """Whether an efficiency's interval allows both perfect scaling and less than half of it."""
    return estimate.ends is not None and estimate.ends[0] < 0.5 and estimate.ends[1] >= 1.0


def plus_minus(estimate: Estimate, scale: float = 1.0) -> str:
    """Write ``"85.6 ± 3.5"``; the point alone without an interval, or where it is exact.

    Exact is the baseline's efficiency, which is 1 by definition. Wide intervals are not
    symmetrical about the point: both ends are written, ``"61 (34–111)"``.
    """
    text = point(estimate, scale)
    half = estimate.half_width
    if not half:
        return text
    if half > WIDE * abs(estimate.value):
        return f"{text} ({interval(estimate, scale)})"
    return f"{text} ± {half * scale:.{decimals(text)}f}"


def launches(estimate: Estimate) -> str:
    """Say on how many launches an estimate rests."""
    return f"{estimate.n} launch{'' if estimate.n == 1 else 'es'}"


def efficiency_phrase(estimate: Estimate) -> str:
    """Write an efficiency as a sentence carries it: ``"85.6 % efficiency (82.1 to 89.0)"``."""
    span = interval(estimate, 100)
    doubt = span or ("no interval: one launch" if estimate.n == 1 else "no interval")
    return f"{point(estimate, 100)} % efficiency ({doubt})"


def not_measured(row: Row) -> str:
    """Say what became of a row that has no measurement: ``"skipped: more ranks than GPUs"``."""
    return f"{row.status}: {plain(row.reason or 'no reason recorded', 110)}"


def hosts_fact(row: Row) -> str:
    """Say what the virtual hosts of a row have: ``"50mbit, 0.2 CPU per rank"``."""
    return f"{plain(row.link or 'link not told', 80)}{cpu_fact(row)}"


def cpu_fact(row: Row) -> str:
    """Say which share of the CPU ranks have: ``", 0.2 CPU per rank"``; empty: no quota."""
    if row.cpu_shares:
        return f", {' and '.join(f'{share:g}' for share in row.cpu_shares)} CPU of the ranks"
    return "" if row.cpus_per_rank is None else f", {row.cpus_per_rank:g} CPU per rank"


def suite_facts(rows: Sequence[Row]) -> str:
    """Say what all rows of a suite have in common: scaling, workload, batch, backend."""
    first = rows[0]
    parts = [f"{joined(sorted({row.scaling for row in rows}))} scaling".replace(*UNKNOWN_SCALING)]
    workloads = {(row.workload, row.num_parameters) for row in rows if row.num_parameters}
    names = sorted({row.workload for row in rows})
    if len(names) == 1 and len(workloads) == 1:
        size = units.count(next(iter(workloads))[1] or 0)
        parts.append(f"{plain(names[0], 60)} ({size} parameters)")
    else:
        parts.append(joined([plain(name, 60) for name in names]))
    per_rank = first.scaling == "weak"
    counted = [row for row in rows if counts_samples(row) and row.global_batch]
    known = sorted({row.rank_batch if per_rank else row.global_batch for row in counted})
    kind = "batch per rank" if per_rank else "global batch"
    parts.append(f"{kind} {joined([str(b) for b in known]) if known else 'not counted'}")
    backends = sorted({plain(row.backend, 30) for row in rows if row.backend})
    parts.append(f"{first.device}{' over ' + joined(backends) if backends else ''}")
    smallest = min((row.baseline[2] for row in rows if row.baseline), default=1)
    if smallest > 1:
        parts.append(f"speedup and efficiency relative to N={smallest}")
    if first.virtual_hosts:
        largest = max(rows, key=lambda row: row.world_size)
        parts.append(f"virtual hosts: {hosts_fact(largest)}")
    return " · ".join(parts)
