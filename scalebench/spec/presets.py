"""The built-in workloads as data: what each preset is made of, and how large it is.

No torch here: the command line answers for a preset (does it exist, how many parameters, what
memory) without starting a worker. ``scalebench/worker/workloads`` builds the modules; a test
compares the parameter counts given here with the modules built there.
"""

import ast
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from scalebench.errors import UsageError, unknown_name
from scalebench.spec.base import Spec
from scalebench.spec.script import ScriptTarget
from scalebench.spec.strategies.groups import Expert
from scalebench.spec.workload import ContextPlan, Divisible, Split, TensorPlan


class GptShape(Spec):
    """A decoder-only transformer: pre-norm, learned positions, output tied to the embedding.

    Source: Radford et al. 2019 (GPT-2); the sizes follow Brown et al. 2020, table 2.1.
    """

    kind: Literal["gpt"] = "gpt"
    name: str
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    width: int = Field(gt=0)
    context: int = Field(gt=0, description="tokens per sample")
    vocabulary: int = Field(256, ge=256, description="rows of the embedding; bytes use 256")
    batch_size: int = Field(gt=0, description="default global batch, samples")

    @property
    def num_parameters(self) -> int:
        """Parameters of the module, the tied embedding counted once."""
        block = 12 * self.width**2 + 13 * self.width
        return (self.vocabulary + self.context) * self.width + self.layers * block + 2 * self.width

    @property
    def tensor_plan(self) -> TensorPlan:
        """How the module's layers are divided (Shoeybi et al. 2019, §3)."""
        return TensorPlan(
            modules={
                "tokens": "vocabulary",
                "positions": "positions",
                "blocks.*.attention_norm": "tokens",
                "blocks.*.attention.qkv": "columns",
                "blocks.*.attention.output": "rows",
                "blocks.*.mlp_norm": "tokens",
                "blocks.*.mlp.expand": "columns",
                "blocks.*.mlp.output": "rows",
                "norm": "last",
            },
            divisors={"heads": self.heads, "vocabulary": self.vocabulary},
            divides_logits=True,
            sequence=self.context,
        )

    @property
    def context_plan(self) -> ContextPlan:
        """What of the module sees more than one token."""
        return ContextPlan(
            attention=("blocks.*.attention.mix",),
            positions=("positions",),
            heads=self.heads,
            sequence=self.context,
        )


class MoeShape(Spec):
    """A `GptShape` with a mixture of experts in place of every MLP.

    Each token is worked on by the ``top_k`` experts that a router chooses for it. Sources: Shazeer
    et al. 2017; Lepikhin et al. 2020 (GShard); Fedus et al. 2021 (Switch Transformer).

    Attributes:
        experts: In every block; each is an MLP of the block's width.
        top_k: Experts that work on a token.
        capacity_factor: An expert takes at most this many times the even share of a sample's
            tokens, rounded up; a token that finds it full is dropped there. None: no token is
            dropped.
    """

    kind: Literal["gpt-moe"] = "gpt-moe"
    name: str
    layers: int = Field(gt=0)
    heads: int = Field(gt=0)
    width: int = Field(gt=0)
    context: int = Field(gt=0, description="tokens per sample")
    vocabulary: int = Field(256, ge=256, description="rows of the embedding; bytes use 256")
    experts: int = Field(gt=0)
    top_k: int = Field(2, gt=0)
    capacity_factor: float | None = Field(1.25, gt=0)
    batch_size: int = Field(gt=0, description="default global batch, samples")

    @property
    def num_parameters(self) -> int:
        """Parameters of the module, the tied embedding counted once."""
        rest = 4 * self.width**2 + 8 * self.width + self.experts * self.width
        block = rest + self.experts * self.expert_parameters
        return (self.vocabulary + self.context) * self.width + self.layers * block + 2 * self.width

    @property
    def expert_parameters(self) -> int:
        """Parameters of one expert."""
        return 8 * self.width**2 + 5 * self.width

    @property
    def capacity(self) -> int | None:
        """Tokens of a sample that an expert takes at most; None: any number."""
        if self.capacity_factor is None:
            return None
        return ceil(self.capacity_factor * self.top_k * self.context / self.experts)


class CnnShape(Spec):
    """A CIFAR-style residual network of depth 6n+2 (He et al. 2016, §4.2) with GroupNorm.

    GroupNorm (Wu & He 2018) normalises within a sample, so that the gradient does not depend on
    how a batch is split over ranks.
    """

    kind: Literal["cnn"] = "cnn"
    name: str
    depth: int = Field(ge=8)
    width: int = Field(16, gt=0, description="channels of the first stage; doubled twice")
    image: int = Field(32, gt=0, description="side of the square RGB image, pixels")
    classes: int = Field(10, gt=1)
    batch_size: int = Field(gt=0, description="default global batch, samples")

    @property
    def num_parameters(self) -> int:
        """Parameters of the module."""
        n, w = (self.depth - 2) // 6, self.width
        total = 27 * w + 2 * w
        channels = w
        for stage in (w, 2 * w, 4 * w):
            for _ in range(n):
                total += 9 * channels * stage + 9 * stage * stage + 4 * stage
                total += channels * stage + 2 * stage if channels != stage else 0
                channels = stage
        return total + channels * self.classes + self.classes


class MlpShape(Spec):
    """A plain perceptron: ``layers`` hidden layers of ``width`` with GELU between."""

    kind: Literal["mlp"] = "mlp"
    name: str
    layers: int = Field(gt=0)
    width: int = Field(gt=0)
    features: int = Field(gt=0)
    classes: int = Field(10, gt=1)
    batch_size: int = Field(gt=0, description="default global batch, samples")

    @property
    def num_parameters(self) -> int:
        """Parameters of the module."""
        sizes = [self.features, *[self.width] * self.layers, self.classes]
        return sum(a * b + b for a, b in pairwise(sizes))

    @property
    def tensor_plan(self) -> TensorPlan:
        """How the module's layers are divided: in pairs, first by columns, then by rows.

        The linear layer on top belongs to a pair only where the hidden ones are odd in number.
        """
        names = [f"blocks.{number}.0" for number in range(self.layers)]
        names += ["classify"] if self.layers % 2 else []
        ways: tuple[Split, Split] = ("columns", "rows")
        modules = {name: ways[number % 2] for number, name in enumerate(names)}
        return TensorPlan(modules, divisors={"width": self.width})


class PacedShape(Spec):
    """Stages that wait for a fixed time per sample instead of computing; CPU ranks only.

    A backward pass takes twice as long as a forward pass, as that of a layer of matrix products
    does.
    """

    kind: Literal["paced"] = "paced"
    name: str
    stages: int = Field(gt=0)
    stage_parameters: int = Field(gt=0)
    sample_s: float = Field(gt=0, description="forward and backward of one sample, seconds")
    batch_size: int = Field(gt=0, description="default global batch, samples")

    @property
    def num_parameters(self) -> int:
        """Parameters of the module."""
        return self.stages * self.stage_parameters

    @property
    def stage_s(self) -> tuple[float, float]:
        """Forward and backward of one sample in one stage, seconds."""
        third = self.sample_s / (3 * self.stages)
        return third, 2 * third


HF = "hf:"
IMAGE_MODELS = ("torchvision", "timm")
"""Libraries whose image models are a workload: ``torchvision:resnet50``."""
NAMED = "scalebench.worker.workloads.named"
"""The module of models by name; its functions are called with that name, too."""


class CustomTarget(Spec):
    """The user's own workload: a function, found by import in the worker."""

    kind: Literal["custom"] = "custom"
    name: str
    module: str
    function: str
    batch_size: int = Field(32, gt=0, description="default global batch, samples")


BuiltIn = GptShape | MoeShape | CnnShape | MlpShape | PacedShape
WorkloadSpec = Annotated[BuiltIn | CustomTarget | ScriptTarget, Field(discriminator="kind")]

_SIZES = ("layers", "heads", "width", "context", "batch_size")
_SHAPES: tuple[BuiltIn, ...] = (
    GptShape(name="gpt-tiny", layers=2, heads=4, width=128, context=64, batch_size=16),
    GptShape(name="gpt-mini", layers=4, heads=4, width=256, context=128, batch_size=32),
    GptShape(name="gpt-deep-tiny", layers=8, heads=4, width=64, context=32, batch_size=16),
    GptShape(name="gpt-long-tiny", layers=2, heads=4, width=64, context=4096, batch_size=1),
    *(
        GptShape(name=name, vocabulary=50304, **dict(zip(_SIZES, sizes, strict=True)))
        for name, *sizes in (
            ("gpt-124m", 12, 12, 768, 1024, 32),
            ("gpt-350m", 24, 16, 1024, 1024, 32),
            ("gpt-1.3b", 24, 16, 2048, 2048, 16),
            ("gpt-7b", 32, 32, 4096, 2048, 16),
            ("gpt-long-124m", 12, 12, 768, 32768, 1),
        )
    ),
    MoeShape(
        name="gpt-moe-tiny", layers=2, heads=4, width=128, context=64, experts=8, batch_size=16
    ),
    MoeShape(
        name="gpt-moe-8x124m",
        layers=12,
        heads=12,
        width=768,
        context=1024,
        vocabulary=50304,
        experts=8,
        batch_size=32,
    ),
    CnnShape(name="cnn-8", depth=8, width=8, batch_size=64),
    CnnShape(name="cnn-20", depth=20, width=16, batch_size=128),
    CnnShape(name="cnn-56", depth=56, width=16, batch_size=256),
    CnnShape(name="cnn-110", depth=110, width=64, batch_size=512),
    MlpShape(name="mlp-tiny", layers=2, width=256, features=192, batch_size=256),
    MlpShape(name="mlp-large", layers=4, width=2048, features=3072, batch_size=1024),
    PacedShape(name="paced", stages=8, stage_parameters=49152, sample_s=0.01, batch_size=32),
)
PRESETS = {shape.name: shape for shape in _SHAPES}

_DEFAULT_OF_FAMILY = {
    "gpt": {"cpu": "gpt-tiny", "cuda": "gpt-124m"},
    "gpt-deep": {"cpu": "gpt-deep-tiny", "cuda": "gpt-350m"},
    "gpt-long": {"cpu": "gpt-long-tiny", "cuda": "gpt-long-124m"},
    "gpt-moe": {"cpu": "gpt-moe-tiny", "cuda": "gpt-moe-8x124m"},
    "cnn": {"cpu": "cnn-8", "cuda": "cnn-56"},
    "mlp": {"cpu": "mlp-tiny", "cuda": "mlp-large"},
}


def _routed(name: str, device: str) -> MoeShape:
    """Return a preset with experts, changed by the words behind its name."""
    base, *options = name.split("+")
    shape = resolve_workload(base, device)
    changes: dict[str, int | float | None] = {}
    for option in options:
        word, _, number = option.rpartition("-")
        if option == "dropless":
            changes["capacity_factor"] = None
        elif word in ("experts", "top") and number.isdecimal() and int(number):
            changes["experts" if word == "experts" else "top_k"] = int(number)
        elif word == "capacity" and _is_positive(number):
            changes["capacity_factor"] = float(number)
        else:
            raise UsageError(
                f"--workload {name!r}: +{option} is none of +experts-NUMBER, +top-NUMBER, "
                "+capacity-FACTOR and +dropless."
            )
    if not isinstance(shape, MoeShape):
        raise UsageError(f"--workload {name!r}: {base} has no experts. Choose gpt-moe.")
    if changes.get("top_k", shape.top_k) > changes.get("experts", shape.experts):  # type: ignore[operator]
        raise UsageError(f"--workload {name!r}: a token cannot have more experts than there are.")
    return shape.model_copy(update={**changes, "name": "+".join([shape.name, *options])})


def _is_positive(text: str) -> bool:
    try:
        return 0 < float(text) < float("inf")
    except ValueError:
        return False


def resolve_workload(name: str, device: str) -> BuiltIn | CustomTarget:
    """Return the workload that ``name`` means on ``device``.

    Args:
        name: A preset, a family (``gpt``: the preset that fits the device), or
            ``module:function`` for the user's own, or ``hf:config.json``, ``torchvision:NAME``,
            ``timm:NAME``. One with experts may be followed by ``+experts-8``, ``+top-1``,
            ``+capacity-1.5`` or ``+dropless``.
        device: ``"cpu"`` or ``"cuda"``.

    Raises:
        UsageError: No such workload; the text lists the valid names and the nearest.
    """
    if name.startswith(HF):
        hf_configuration(name)
        return CustomTarget(name=name, module=NAMED, function="hf", batch_size=8)
    if name.partition(":")[0] in IMAGE_MODELS:
        image_model(name)
        return CustomTarget(name=name, module=NAMED, function=name.partition(":")[0], batch_size=8)
    if ":" in name:
        module, _, function = name.partition(":")
        parts = [*module.split("."), function]
        if module.endswith(".py") or not all(part.isidentifier() for part in parts):
            raise _meant(name) or UsageError(
                f"--workload {name!r} is not MODULE:FUNCTION. Give an importable module and a "
                "function in it, for example my_models:workload."
            )
        return CustomTarget(name=name, module=module, function=function)
    if "+" in name:
        return _routed(name, device)
    if name in _DEFAULT_OF_FAMILY:
        return PRESETS[_DEFAULT_OF_FAMILY[name][device]]
    if name in PRESETS:
        return PRESETS[name]
    raise _meant(name) or unknown_name(
        "workload", name, [*_DEFAULT_OF_FAMILY, *PRESETS, "module:function"]
    )


def hf_configuration(name: str) -> tuple[Path, int | None]:
    """Return the file of ``hf:FILE`` or ``hf:FOLDER``, and the context of ``…+context-512``.

    Raises:
        UsageError: There is no such file, or the context is no number.
    """
    given, context = _sized(name, "context", "tokens")
    path = Path(given) / "config.json" if Path(given).is_dir() else Path(given)
    if not path.is_file():
        raise UsageError(
            f"--workload {name}: there is no {path}. Give a config.json of Hugging Face, or the "
            "folder of one; nothing is downloaded."
        )
    return path, context


def image_model(name: str) -> tuple[str, int | None]:
    """Return the model of ``torchvision:NAME`` or ``timm:NAME``, and the pixels of ``…+image-64``.

    Raises:
        UsageError: The pixels are no number.
    """
    return _sized(name, "image", "pixels")


def _sized(name: str, word: str, unit: str) -> tuple[str, int | None]:
    given, plus, size = name.partition(":")[2].partition(f"+{word}-")
    if plus and not (size.isdecimal() and int(size) > 1):
        raise UsageError(f"--workload {name}: the {word} is a number of {unit}: +{word}-512.")
    return given, int(size) if plus else None


def _meant(name: str) -> UsageError | None:
    target = meant_target(name)
    if target is None:
        return None
    return UsageError(
        f"--workload {name} is not MODULE:FUNCTION, which a workload of your own needs. Write: "
        f"--workload {target}."
    )


def divisible(workload: WorkloadSpec) -> Divisible:
    """Return what a workload says of how it can be divided; of a user's own only ranks know it."""
    if isinstance(workload, CustomTarget | ScriptTarget):
        return Divisible(workload.name, own=True, known=False)
    if isinstance(workload, MoeShape):
        return Divisible(workload.name, experts=(workload.experts,), top_k=workload.top_k)
    if isinstance(workload, GptShape):
        plans = workload.tensor_plan, workload.context_plan
        return Divisible(workload.name, *plans, layers=workload.layers + 2)
    return Divisible(
        workload.name, workload.tensor_plan if isinstance(workload, MlpShape) else None
    )


def routed_workload(strategy: Expert, name: str, device: str) -> str:
    """Return the workload's name, with what the strategy asks of its router behind it.

    Unchanged where the strategy asks for nothing, or for what cannot be: its ``why_not`` and
    ``why_not_divided`` say so.
    """
    if strategy.why_not_itself() is not None:
        return name
    shape = resolve_workload(name, device)
    if not isinstance(shape, MoeShape) or strategy.why_not_divided(divisible(shape), 1) is not None:
        return name
    asked = {
        "experts": strategy.experts,
        "top": strategy.top_k,
        "capacity": strategy.capacity_factor,
    }
    options = [f"{word}-{number:g}" for word, number in asked.items() if number is not None]
    return "+".join([name, *options, *(["dropless"] if strategy.dropless else [])])


LARGEST_BYTES = 1 << 20


def meant_target(name: str) -> str | None:
    """Return the workload that a name seems to mean, from a Python file in this folder; or None.

    The file is read, and not executed.
    """
    given, _, function = name.removeprefix("./").partition(":")
    module = given.removesuffix(".py").replace("/", ".")
    package, _, last = module.rpartition(".")
    for stem, wanted in ((module, function), (package, function or last)):
        found = _functions(Path(f"{stem.replace('.', '/')}.py"))
        if found and (not wanted or wanted in found):
            usual = [one for one in ("workload", stem.rpartition(".")[2]) if one in found]
            return f"{stem}:{wanted or (usual or found)[0]}"
    return None


def _functions(file: Path) -> list[str]:
    """Return the public functions of a file that one argument is enough for; none: unreadable."""
    try:
        if file.stat().st_size > LARGEST_BYTES:
            return []
        body = ast.parse(file.read_bytes()).body
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return [
        node.name
        for node in body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and _takes_one(node)
    ]


def _takes_one(node: ast.FunctionDef) -> bool:
    named = len(node.args.posonlyargs) + len(node.args.args)
    return named - len(node.args.defaults) <= 1 <= named + (node.args.vararg is not None)
