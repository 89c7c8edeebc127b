"""What the host was doing when it launched a kernel."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scalebench.trace.events import Events
from scalebench.trace.intervals import Indices, Spans, named
from scalebench.trace.operations.names import COMMS_RECORD, backend_of, works_on_device

NEVER = np.iinfo(np.int64).min
"""In place of a moment that the trace does not tell; earlier than any."""


@dataclass(frozen=True)
class Launch:
    """Events of the host around the launch of one kernel; None: there is none."""

    annotation: int | None
    request: int | None
    record: int | None


@dataclass(frozen=True)
class KernelLaunches:
    """The host's side of some kernels, one entry per kernel.

    Attributes:
        asked_ns: When the host asked for it, `NEVER` where the trace does not tell. int64 [k].
        annotation: Index of torch's annotation around the launch (``nccl:all_reduce``); -1.
        request: Index of the ``c10d::`` operator around the launch; -1.
        record: Index of the event that carries the collective's metadata; -1.
    """

    asked_ns: NDArray[np.int64]
    annotation: Indices
    request: Indices
    record: Indices

    def of(self, position: int) -> Launch:
        """Return what surrounds the launch of one kernel."""
        found = (self.annotation[position], self.request[position], self.record[position])
        return Launch(*(int(index) if index >= 0 else None for index in found))


def find_launches(events: Events, kernels: Indices) -> KernelLaunches:
    """Find what surrounded the launch of each kernel.

    The runtime call with the kernel's correlation tells the moment and the thread. Where no such
    call was traced, the event with the kernel's ``External id`` does.
    """
    on_host = np.zeros(len(events), dtype=bool)
    on_host[np.concatenate((events.of("cpu_op"), events.of("user_annotation")))] = True

    def spans(wanted: list[bool]) -> Spans:
        return Spans.of(events, np.flatnonzero(named(events, wanted) & on_host))

    families = (
        spans([backend_of(name) is not None for name in events.names]),
        *(spans([n.startswith(begin) for n in events.names]) for begin in ("c10d::", COMMS_RECORD)),
    )
    moments, threads = runtime_calls(events, kernels)
    by_call = [family.containing(moments, threads) for family in families]
    moments, threads = _external_events(events, kernels, moments, threads, on_host)
    by_id = [family.containing(moments, threads) for family in families]
    found_by_call = np.maximum.reduce(by_call) >= 0
    annotation, request, record = (
        np.where(found_by_call, one, other) for one, other in zip(by_call, by_id, strict=True)
    )
    asked = np.where(request >= 0, events.start_ns[request], moments)
    annotation = np.where(annotation >= 0, annotation, annotation_on_gpu(events, kernels))
    return KernelLaunches(asked, annotation, request, record)


def collectives_by_copies(events: Events, copies: Indices, kernels: Indices) -> tuple[Indices, ...]:
    """Return the copies with which NCCL carried out an operation, one array for each operation.

    They were asked for inside NCCL's annotation, and no kernel of NCCL was. So it is with a single
    rank, and with copy engines (NCCL 2.28 and later). Next to a kernel, torch copies to or from the
    operation's buffers.
    """
    on_device = [works_on_device(name) for name in events.names]
    on_host = np.concatenate((events.of("cpu_op"), events.of("user_annotation")))
    annotations = Spans.of(events, on_host[named(events, on_device)[on_host]])
    around = annotations.containing(*runtime_calls(events, copies))
    with_kernel = annotations.containing(*runtime_calls(events, kernels))
    found = np.setdiff1d(around[around >= 0], with_kernel)
    return tuple(copies[around == annotation] for annotation in found)


def runtime_calls(events: Events, kernels: Indices) -> tuple[Indices, Indices]:
    """Return moment and thread of the calls that launched kernels or copies.

    The moment is `NEVER` where no such call was traced.
    """
    calls = events.of("runtime")
    calls = calls[events.correlation[calls] > 0]
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    moments = np.full(len(kernels), NEVER, dtype=np.int64)
    threads = np.zeros(len(kernels), dtype=np.int64)
    if len(calls):
        known = events.correlation[calls]
        position = np.minimum(np.searchsorted(known, events.correlation[kernels]), len(known) - 1)
        found = known[position] == events.correlation[kernels]
        moments[found] = events.start_ns[calls[position[found]]]
        threads[found] = events.thread[calls[position[found]]]
    return moments, threads


def _external_events(
    events: Events, kernels: Indices, moments: Indices, threads: Indices, on_host: NDArray[np.bool_]
) -> tuple[Indices, Indices]:
    """Return moment and thread of the host's events that share the kernels' ``External id``.

    Old traces count operators and kernels apart, so that equal numbers mean nothing: an event
    that does not contain the launch is another's.
    """
    moments, threads = moments.copy(), threads.copy()
    hosts = {
        str(details["External id"]): index
        for index, details in events.details.items()
        if "External id" in details and on_host[index]
    }
    for position, kernel in enumerate(kernels):
        identity = str(events.details.get(int(kernel), {}).get("External id"))
        host = hosts.get(identity)
        if host is None or identity == str(events.correlation[kernel]):
            continue
        launched = moments[position]
        if launched == NEVER or events.start_ns[host] <= launched <= events.end_ns[host]:
            moments[position] = events.start_ns[host]
            threads[position] = events.thread[host]
    return moments, threads


def annotation_on_gpu(events: Events, kernels: Indices) -> Indices:
    """Return the annotations that Kineto projected onto the kernels' streams."""
    wanted = named(events, [backend_of(name) is not None for name in events.names])
    projected = events.of("gpu_user_annotation")
    return Spans.of(events, projected[wanted[projected]]).containing(
        events.start_ns[kernels], events.thread[kernels]
    )
