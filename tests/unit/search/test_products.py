"""What measured matrix products say of a device, and who is believed where rows say otherwise."""

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from scalebench.analysis.run import load_run
from scalebench.cli import cli
from scalebench.errors import UsageError
from scalebench.records.measured.trace import TracedProduct
from scalebench.search.devices.parameters import defaults
from scalebench.search.devices.products import measured_products, usual_of
from scalebench.search.prediction.passes import Rate
from scalebench.search.prediction.speed import device_type, modelled_speed
from scalebench.search.space import USUAL

H100 = defaults("h100")
TRACES = Path(__file__).parents[2] / "golden" / "traces"
RECORDED = TRACES / "nccl-sendrecv_128ranks_rank0.json.gz"


def device(values=H100):
    return modelled_speed(device_type("h100"), values, "").device


def products(values, noise=0.0, count=20):
    """Return products of a transformer's sizes as a device with such parameters does them."""
    random = np.random.default_rng(0)
    made = []
    for m in (512, 2048, 4096):
        for n, k in ((4096, 4096), (12288, 4096), (22016, 4096), (4096, 11008)):
            seconds = float(Rate(device(values), USUAL).product(m, n, k)) * np.exp(
                random.normal(0, noise)
            )
            made.append(TracedProduct(m=m, n=n, k=k, count=count, total_s=count * float(seconds)))
    return made


@pytest.mark.parametrize("efficiency", [0.5, 0.74])
def test_the_efficiency_of_a_device_follows_from_its_products(efficiency):
    planted = H100._replace(matrix_efficiency=efficiency, kernel_s=9e-6)
    usual = usual_of(products(planted, noise=0.05), "h100", device(), Path("rank0.json"))
    found = usual.of("h100")
    assert found.matrix_efficiency == pytest.approx(efficiency, rel=0.05)
    assert found._replace(matrix_efficiency=0, kernel_s=0) == H100._replace(
        matrix_efficiency=0, kernel_s=0
    ), "nothing else follows from products"
    assert usual.of("a100") == defaults("a100")
    assert "12 shapes in rank0.json" in usual.described and "(default 0.65)" in usual.described


def test_one_small_product_says_little():
    few = [TracedProduct(m=8, n=8, k=8, count=1, total_s=2e-5)]
    found = usual_of(few, "h100", device(), Path("rank0.json")).of("h100")
    assert found.matrix_efficiency == pytest.approx(H100.matrix_efficiency, rel=0.02)


def test_products_faster_than_the_device_are_of_another():
    fast = [one.model_copy(update={"total_s": one.total_s / 3}) for one in products(H100)]
    with pytest.raises(UsageError, match="of the published peak of h100"):
        usual_of(fast, "h100", device(), Path("rank0.json"))


def test_products_ten_times_too_slow_count_for_nothing():
    slow = [one.model_copy(update={"total_s": 10 * one.total_s}) for one in products(H100)]
    usual = usual_of(slow, "h100", device(), Path("rank0.json"))
    assert usual.of("h100") == H100 and "count for nothing" in usual.described


def searched(*arguments):
    return CliRunner().invoke(
        cli, ["search", "--gpus", "8", "--workload", "gpt-7b", *arguments], standalone_mode=False
    )


def test_a_trace_is_read_and_one_without_such_products_is_refused(tmp_path):
    refused = searched("--gpu-type", "a100", "--measured", str(RECORDED))
    assert isinstance(refused.exception, UsageError)
    assert "record_shapes=True" in str(refused.exception)
    file = tmp_path / "rank0.json.gz"
    told = gzip.decompress(RECORDED.read_bytes()).replace(b'"float"', b'"c10::BFloat16"')
    file.write_bytes(gzip.compress(told))
    done = searched("--gpu-type", "a100", "--measured", str(file))
    assert done.exception is None, done.exception
    said = " ".join(done.stdout.split())  # they are of 32 bits, so too slow
    assert "matrix products of 147 shapes" in said and "count for nothing" in said


def test_a_runs_own_traces_count_for_its_device_alone(tmp_path, monkeypatch):
    run = load_run(Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores")
    planted = H100._replace(matrix_efficiency=0.5)
    for name, launch in run.results.items():
        ranks = [
            rank.model_copy(update={"trace": rank.trace and rank.trace.model_copy(
                update={"products": products(planted)})})
            for rank in launch.ranks
        ]  # fmt: skip
        run.results[name] = launch.model_copy(update={"ranks": ranks})
    environment = {**run.info.environment, "devices": [{"name": "NVIDIA H100 80GB HBM3"}]}
    run = replace(run, info=run.info.model_copy(update={"environment": environment}))
    monkeypatch.setattr("scalebench.search.devices.products.load_run", lambda _: run)
    usual = measured_products(tmp_path, "h100", device())
    assert usual.of("h100").matrix_efficiency == pytest.approx(0.5, rel=0.02)
    assert measured_products(tmp_path, "a100", device()).described == ""
