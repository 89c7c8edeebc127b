"""What a device's own matrix products say of it: how fast it is at their sizes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from scalebench.analysis.run import StoredRun, load_run
from scalebench.errors import UsageError
from scalebench.records.measured.trace import TracedProduct
from scalebench.search.candidates import Floats
from scalebench.search.devices.parameters import PARAMETERS, DeviceModel, Parameters, chip, defaults
from scalebench.search.prediction.passes import Rate
from scalebench.search.prediction.speed import short_name
from scalebench.search.space import USUAL
from scalebench.trace.files.kineto import read_kineto
from scalebench.trace.operations.gpu_work import products_of, summed_products

FORM = 0.1
"""Mean error of a product's time by its sizes, fitted to 21,924 products in 16 bits each of an A100
and an H100 that Vidur's authors measured (Agrawal et al. 2024): 0.10 and 0.11."""

MOST_OFF = 50.0
"""Per cent; products that are further off in the mean are of another device, or of a busy one."""

OF_PRODUCTS = ("matrix_efficiency", "kernel_s")
SPREAD = 0.08
"""Standard deviation of their logarithms from single products to whole steps."""


@dataclass(frozen=True)
class Usual:
    """What parameters are where no row of training tells: by measured products, or the defaults.

    Attributes:
        measured: Device, by its short name → its parameters by its products.
        described: What these are from, and how well they fit; empty: there are none.
    """

    measured: Mapping[str, Parameters] = field(default_factory=dict)
    described: str = ""

    def of(self, device: str) -> Parameters:
        """Return the parameters of a device."""
        return self.measured.get(device) or defaults(device)

    def spread(self, name: str) -> float:
        """Return by how much the logarithm of a parameter may differ from that."""
        return SPREAD if self.measured and name in OF_PRODUCTS else PARAMETERS[name].spread


def usual_of(products: Sequence[TracedProduct], gpu: str, device: DeviceModel, of: Path) -> Usual:
    """Fit a device's efficiency, and its time besides, to products; each counts by its time.

    Args:
        products: In 16 bits.
        gpu: Name of the device.
        device: The same.
        of: Where the products are from.

    Raises:
        UsageError: They are faster than the device can be.
    """
    m, n, k, count, total_s = np.array([tuple(one.model_dump().values()) for one in products]).T
    part = float(2 * (m * n * k * count).sum() / total_s.sum() / device.peaks["bfloat16"])
    if part > 1:
        raise UsageError(
            f"{of}: its matrix products reach {100 * part:.0f} % of the published peak of {gpu}. "
            "Was it recorded on another device? --gpu-type names the device of a trace."
        )
    begin, weight = defaults(chip(gpu)), np.sqrt(len(products) * total_s / total_s.sum())
    usual = np.log([getattr(begin, name) for name in OF_PRODUCTS])
    spread, low, high = np.array(
        [(p.spread, *np.log((p.low, p.high))) for p in map(PARAMETERS.__getitem__, OF_PRODUCTS)]
    ).T

    def values(at: Floats) -> Parameters:
        return begin._replace(**dict(zip(OF_PRODUCTS, np.exp(at).tolist(), strict=True)))

    def errors(at: Floats) -> Floats:
        rate = Rate(replace(device, values=values(at)), USUAL)
        return np.asarray(np.log(rate.product(m, n, k) * count / total_s))

    def residuals(at: Floats) -> Floats:
        return np.concatenate([weight * errors(at) / FORM, (at - usual) / spread])

    at = least_squares(residuals, usual, bounds=(low, high), loss="soft_l1").x
    found = ", ".join(
        f"{name} {getattr(values(at), name):.3g} (default {getattr(begin, name):.3g})"
        for name in OF_PRODUCTS
    )
    shapes = f"{len(products)} shape" + "s" * (len(products) != 1)
    off = 100 * np.average(np.abs(errors(at)), weights=total_s)
    if off > MOST_OFF:
        said = f"matrix products of {shapes} in {of} are {off:.0f} % off what {gpu} takes for them"
        return Usual(described=f"{said}, and count for nothing: were they recorded on it, alone?")
    said = f"fitted to matrix products of {shapes} in {of}: {found}, {off:.0f} % off in the mean"
    return Usual({chip(gpu): values(at)}, said)


def measured_products(path: Path, gpu: str, device: DeviceModel) -> Usual:
    """Return what the matrix products of a trace, or of a run's traces, say of a device.

    Args:
        path: A trace of torch's profiler, a run folder, or else: there are none then.
        gpu: Device that is searched for, and that a trace is of.
        device: The same.

    Raises:
        UsageError: A trace has none, or they cannot be of this device.
    """
    if path.is_dir():
        run = load_run(path)
        devices = run.info.environment.get("devices") or [{}]
        same = chip(short_name(str(devices[0].get("name", "")))) == chip(gpu)
        products = products_of_run(run) if same else []
    elif is_trace(path):
        products = products_of(read_kineto(path))
        if not products:
            raise UsageError(
                f"{path} tells the shapes of no matrix product of a GPU in 16 bits. Record it with "
                "torch.profiler.profile(record_shapes=True) while a model trains in bfloat16."
            )
    else:
        products = []
    return usual_of(products, gpu, device, path) if products else Usual()


def is_trace(path: Path) -> bool:
    """Return whether a file is a trace of torch's profiler, by its name."""
    return path.name.endswith((".json", ".json.gz"))


def products_of_run(run: StoredRun) -> list[TracedProduct]:
    """Return the products in 16 bits that a run's ranks traced on GPUs, by shape."""
    ranks = [rank for launch in run.results.values() for rank in launch.ranks]
    return summed_products(one for rank in ranks if rank.trace for one in rank.trace.products)
