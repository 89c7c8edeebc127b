"""Collectives' results: all of them right, and a wrong one is noticed.

Certificates as files: kept with the user's other caches, found by machine.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalebench.machine import identity
from scalebench.records.certificate import FORMAT, Certificate, Line
from scalebench.records.measured.probes import TimedTransfer
from scalebench.records.paths import certificates_folder
from scalebench.records.storage.files import write_model
from scalebench.session.selftest.bench import Bench
from scalebench.spec.collectives import COLLECTIVES, DtypeName
from scalebench.spec.probes import InjectedFault, Sweep, Transfer


def keep(certificate: Certificate) -> Path:
    """Store a certificate for the runs to come; return its file.

    Raises:
        OSError: It cannot be written.
    """
    folder = certificates_folder()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{certificate.id}.json"
    write_model(target, certificate)
    return target


def newest(environment: Mapping[str, Any]) -> Certificate | None:
    """Return the newest certificate of the machine with this fingerprint, or None.

    One of other software, or of a machine with other devices, does not hold.
    """
    wanted = identity(environment)
    return next((one for one in _stored() if one.machine == wanted), None)


def _stored() -> Iterator[Certificate]:
    """Yield what can be read, the newest first: names begin with the time."""
    for path in sorted(certificates_folder().glob("*.json"), reverse=True):
        with suppress(OSError, ValidationError, ValueError):
            certificate = Certificate.model_validate_json(path.read_text())
            if certificate.format == FORMAT:
                yield certificate


SIZES_BYTES = (24, 4096, 262144)
DTYPES: tuple[DtypeName, ...] = ("float32", "int8")
NUM_RANKS = 3
MOST_WRONG = 20


def results(bench: Bench) -> Iterator[Line]:
    """Yield how many elements were wrong, with none injected and with some."""
    found = _sweep(bench, None)
    num_wrong = sum(one.num_wrong for one in found)
    kinds = len({one.transfer.operation for one in found})
    yield _line(
        "results of collectives",
        injected=0,
        recovered=num_wrong,
        detail=f"{kinds} operations, {sum(one.num_elements for one in found)} elements",
    )
    fault = InjectedFault(
        kind="wrong_elements",
        rank=bench.random.randrange(NUM_RANKS),
        count=bench.random.randint(1, MOST_WRONG),
    )
    found = _sweep(bench, fault)
    yield _line(
        "wrong elements planted",
        injected=fault.count,
        recovered=sum(one.num_wrong for one in found),
        detail=f"rank {fault.rank} of {NUM_RANKS}",
    )


def _line(name: str, injected: int, recovered: int, detail: str) -> Line:
    error = recovered - injected
    return Line(
        name=name,
        unit="elements",
        injected=injected,
        recovered=recovered,
        error_ratio=error / max(injected, 1),
        limit=0.0,
        limit_of="elements",
        detail=detail,
    )


def _sweep(bench: Bench, fault: InjectedFault | None) -> tuple[TimedTransfer, ...]:
    transfers = tuple(
        Transfer(operation=name, size_bytes=size, dtype=dtype, back_to_back=1)
        for name in COLLECTIVES
        for size in SIZES_BYTES
        for dtype in DTYPES
    )
    plan = Sweep(
        world_size=NUM_RANKS,
        device="cpu",
        backend="gloo",
        threads=1,
        transfers=transfers,
        repeats=1,
    )
    return bench.probe(plan, fault)[0].sweep
