"""Certificates as files: kept with the user's other caches, found by machine."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from scalebench.machine import identity
from scalebench.records.certificate import FORMAT, Certificate
from scalebench.records.files import write_model
from scalebench.records.paths import certificates_folder


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
