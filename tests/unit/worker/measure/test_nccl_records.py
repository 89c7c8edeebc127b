"""From NCCL's records, as torch's own profiler hands them over, to a prediction.

The records are real. What only a GPU can add is made up: kernels, one for every operator.
"""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scalebench.analysis.rows.launches import Launches
from scalebench.analysis.rows.prediction import predict_row
from scalebench.trace.classify import timeline_of
from scalebench.trace.events import CATEGORIES, Events
from scalebench.worker.measure.trace_record import trace_record
from scalebench.worker.measure.tracing import Capture, traced
from tests.builders.predictions import the_link
from tests.builders.runs import make_cell
from tests.builders.traced import make_traced_record, make_traced_result
from tests.standins import built

pytestmark = pytest.mark.slow
TORCH = Path(torch.__file__).parent
NAMES = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
}
Record = Callable[..., None]


@pytest.fixture(scope="module")
def record() -> Record:
    """Tells the profiler of one operation of NCCL, on float32."""
    flags = (f"-I{TORCH}/include", "-std=c++20", f"-L{TORCH}/lib", "-ltorch_cpu", "-lc10")
    library = ctypes.CDLL(str(built("nccl_records.cpp", "nccl_records.so", flags)))

    def tell(name: str, elements_in: int, elements_out: int, sequence: int, ranks: int) -> None:
        operation, annotation = NAMES[name]
        texts = [text.encode() for text in (operation, name, annotation)]
        sizes = [ctypes.c_int64(number) for number in (elements_in, elements_out, sequence)]
        library.record(*texts, *sizes, 0, ranks)

    return tell


def on_a_gpu(events: Events) -> Events:
    """Add a kernel of 1 µs to every operator of torch's, which launched it at its beginning."""
    is_aten = np.array([events.names[i].startswith("aten::") for i in events.name])
    ops = events.of("cpu_op")[is_aten[events.of("cpu_op")]]
    number, first = len(ops), len(events.names)
    asked, own = events.start_ns[ops], np.arange(number) + 1
    stream = np.full(number, 7)

    def added(column: np.ndarray, *more: np.ndarray) -> np.ndarray:
        return np.concatenate((column, *more)).astype(column.dtype)

    return replace(
        events,
        names=[*events.names, "cudaLaunchKernel", "gemm"],
        name=added(events.name, np.full(number, first), np.full(number, first + 1)),
        category=added(
            events.category, *(np.full(number, CATEGORIES.index(c)) for c in ("runtime", "kernel"))
        ),
        start_ns=added(events.start_ns, asked, asked + 1000),
        end_ns=added(events.end_ns, asked, asked + 2000),
        thread=added(events.thread, events.thread[ops], stream),
        correlation=added(events.correlation, own, own),
    )


@pytest.mark.filterwarnings("ignore:CUDA is not available")
@pytest.mark.parametrize(
    ("name", "elements", "kind"),
    [
        ("allreduce", (1000, 1000), "all_reduce"),
        ("_allgather_base", (1000, 1000), "all_gather"),
        ("_reduce_scatter_base", (1000, 1000), "reduce_scatter"),
    ],
)
def test_an_operations_kind_size_and_group_are_known(record, name, elements, kind):
    with traced(torch.device("cuda")) as capture, capture.step():
        torch.ones(8).sum()
        record(name, *elements, 17, 1)
    (found,) = timeline_of(on_a_gpu(capture.events)).operations
    assert (found.kind, found.num_bytes, found.dtype) == (kind, 4000, "float32")
    assert (found.group, found.group_size, found.sequence) == ("0", 1, 17)


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:CUDA is not available")
def test_from_a_step_of_ddp_on_one_rank_the_row_of_two_is_predicted(record, alone):
    model = DistributedDataParallel(
        torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(4))), bucket_cap_mb=0.03
    )
    sent: list[int] = []

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        elements = bucket.buffer().numel()
        sent.append(elements * 4)
        record("allreduce", elements, elements, len(sent), 1)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    model.register_comm_hook(None, hook)

    def train() -> None:
        sent.clear()
        model(torch.ones(2, 64)).sum().backward()

    for _ in range(2):  # DDP makes its buckets anew after the first step
        train()
    with traced(torch.device("cuda")) as capture:
        for _ in range(3):
            with capture.step():
                train()
    block = Capture(step_ns=capture.step_ns, events=on_a_gpu(capture.events))
    gpu = {"device": "cuda", "backend": "nccl"}
    result = make_traced_result(make_traced_record(0, trace_record([block]), clean=5), **gpu)
    base, row = Launches(result.cell, measured={0: result}), Launches(make_cell("ddp", 2, **gpu))
    found = predict_row(row, base, the_link(2), None)
    assert len(sent) > 1
    told = found["prediction"].operations
    assert [op.size_bytes for op in told] == sent
    assert 0 < told[0].ready_s < told[-1].ready_s < found["predicted_step_s"]
