"""Compressed training over real ranks: the same bits everywhere, and what the emulation says.

Run as a program, this file is the ranks: they inspect all methods one after the other, then some of
them again with something planted.
"""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from scalebench.analysis.run import load_run
from scalebench.spec import Compressed
from scalebench.spec.presets import MlpShape
from scalebench.spec.strategies.data_parallel import METHODS
from scalebench.worker.inspection.reference import fresh_workload
from scalebench.worker.inspection.verify import inspect_compressed
from scalebench.worker.process.context import RankContext, connected
from scalebench.worker.strategies.compressed import CompressedTraining
from scalebench.worker.strategies.compression import codec, hook
from tests.conftest import scalebench_in
from tests.examples import cases
from tests.integration.conftest import SHORT, complaint
from tests.integration.programs import inspecting, main, reports_of

WORLD_SIZES = (2, 3)
MODEL = MlpShape(name="mlp-test", layers=2, width=48, features=40, batch_size=24)
BUCKET_MB = 0.006  # several buckets, and others after the first step than before

VARIANTS = {
    **{method: {} for method in METHODS if method != "powersgd-batched"},
    "top-k": {"ratio": 0.05},
    "threshold": {"threshold": 0.01},
    "count-sketch": {"ratio": 0.05},
    "quantise": {"bits": 4, "error_feedback": True, "chunk": 64},
    "quantise stochastic": {"bits": 2, "rounding": "stochastic", "chunk": 64},
    "random-k scaled": {"error_feedback": False, "ratio": 0.1},
    "random-projection scaled": {"error_feedback": False},
    "dgc": {"ratio": 0.02},
}
"""Name → parameters; the method is the first word."""


def cell_of(variant, world_size, **strategy):
    settings = {"method": variant.split()[0], "bucket_mb": BUCKET_MB, **VARIANTS[variant]}
    return inspecting(Compressed(**settings, **strategy), MODEL, world_size, 24)


def inspected(context):
    found = inspect_compressed(context)
    error = found.gradient_error
    return {
        "verification": found.verification.model_dump(),
        "error": None if error is None else error.model_dump(),
    }


def traffic(context):
    training = trained(context, 7)
    sizes = [parameter.numel() for parameter in training.module.parameters()]
    layout = training.observer.layout_at(training.observer.step)
    return {
        **training.observer.traffic.model_dump(),
        "bucket_sizes": [sum(sizes[key] for key in keys) for keys in layout],
        "layouts": {str(k): v for k, v in training.observer.layouts.items()},
    }


def trained(context, num_steps, other_hook=None):
    workload = fresh_workload(context)
    replaced = patch.object(CompressedTraining, "_hook", lambda *_: (None, other_hook))
    with replaced if other_hook else nullcontext():
        training = CompressedTraining(context.cell.strategy, workload, context)
    for _, batch in zip(range(num_steps), workload.batches, strict=False):
        training.step(batch)
    return training


def same_as_torch(context):
    ours = dict(trained(context, 3).gradients())
    theirs = dict(trained(context, 3, default_hooks.fp16_compress_hook).gradients())
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


def spoiled_end(original):
    def end(self, exchange):
        original(self, exchange)
        exchange.buffer[0] = torch.nextafter(exchange.buffer[0], torch.tensor(9.0))

    return end


def moving(original, by):
    def init(self, *arguments):
        original(self, *arguments)
        for parameter in self.module.parameters():
            parameter.register_hook(by)

    return init


IN_BFLOAT16 = {
    "rounds elsewhere": lambda g: g * (1 + 2**-8 * torch.randn_like(g)),
    "is a third too large": lambda g: g * 1.3,
}
"""What gradients do → how; the first is half a unit in the last place, as other kernels do it."""


def forgetful(self, bucket):
    return bucket.gradient.clone()


def drawn_elsewhere(self, device):
    return torch.Generator(device).manual_seed(1)


PLANTED = {
    "forgets": ("sign", hook.ErrorFeedback, "corrected", forgetful),
    "other randoms": ("random-k", codec.Draw, "shared", drawn_elsewhere),
    "one bit": ("top-k", hook.Compression, "_end", spoiled_end(hook.Compression._end)),
}
"""What is planted on rank 1 → method, and what is replaced by what."""


def run_rank(folder, rank, world_size):
    report = {"inspected": {}, "traffic": {}, "planted": {}}
    first = cell_of("none", world_size)
    with connected(first, rank, folder / f"store{world_size}") as joined:

        def context(variant, **strategy):
            cell = cell_of(variant, world_size, **strategy)
            return RankContext(cell, rank, rank, joined.device, joined.control)

        for variant in VARIANTS:
            report["inspected"][variant] = inspected(context(variant))
            report["traffic"][variant] = traffic(context(variant))
        if world_size == 2:
            for what, (variant, *planted) in PLANTED.items():
                with patch.object(*planted) if rank == 1 else nullcontext():
                    report["planted"][what] = inspected(context(variant))
            for what, by in IN_BFLOAT16.items():
                init = moving(CompressedTraining.__init__, by)
                with patch.object(CompressedTraining, "__init__", init):
                    report["planted"][what] = inspected(context("sign", autocast=True))
        report["same as torch"] = same_as_torch(context("fp16"))
        dist.barrier()
    return report


every_world_size = cases("world_size", *WORLD_SIZES)
LOSSY = [v for v in VARIANTS if v not in ("none", "noop")]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    return reports_of(
        "compression.test_compression", tmp_path_factory.mktemp("compressed"), WORLD_SIZES
    )


def test_every_method_that_runs_here_is_looked_at():
    assert {v.split()[0] for v in VARIANTS} == set(METHODS) - {"powersgd-batched"}


@every_world_size
@cases("variant", *VARIANTS)
def test_every_rank_agrees_with_the_emulation(reports, world_size, variant):
    """Same bits on all ranks after decoding; gradients and losses those of one process."""
    found = [report["inspected"][variant]["verification"] for report in reports[world_size]]
    if variant == "noop":
        assert {f["status"] for f in found} == {"unverified"}
        assert "bounds what compression can gain" in found[0]["reason"]
        return
    assert {f["status"] for f in found} == {"verified"}, found
    allowed = 2e-3 if variant in ("bf16", "fp16") and world_size > 2 else 1e-5
    if variant == "bf16" and world_size > 2:
        allowed = 1e-2
    assert found[0]["gradient_deviation"] <= allowed
    assert found[0]["loss_deviation"] <= allowed


@every_world_size
def test_the_gradient_error_orders_the_methods(reports, world_size):
    error = {v: reports[world_size][0]["inspected"][v]["error"] for v in VARIANTS}
    assert error["none"]["relative_l2"] < 1e-6 and error["none"]["cosine"] > 1 - 1e-9
    assert error["none"]["relative_l2"] < error["fp16"]["relative_l2"]
    assert error["fp16"]["relative_l2"] < error["bf16"]["relative_l2"] < 0.02
    assert all(error[v]["relative_l2"] > 0 and error[v]["cosine"] < 1 for v in LOSSY)
    assert error["noop"]["step"] == 0 and error["noop"]["relative_l2"] > 0.1


@cases("what, status", ("rounds elsewhere", "verified"), ("is a third too large", "deviates"))
def test_a_method_may_enlarge_what_bfloat16_moves(reports, what, status):
    """A sign flips, and what is left of a gradient is far off, though training is right."""
    found = reports[2][0]["planted"][what]["verification"]
    assert found["status"] == status, found
    assert found["gradient_deviation"] > 0.05 and found["tolerance"] < 0.5


def test_half_precision_has_the_bits_of_torchs_own_hook(reports):
    assert all(report["same as torch"] for report in reports[2])


@every_world_size
def test_what_is_handed_over(reports, world_size):
    traffic = {v: reports[world_size][0]["traffic"][v] for v in VARIANTS}
    whole = traffic["none"]["gradient_bytes"]
    assert all(t["gradient_bytes"] == whole and t["num_buckets"] >= 2 for t in traffic.values())
    assert traffic["none"]["all_reduce_bytes"] == whole
    assert traffic["noop"]["all_reduce_bytes"] == traffic["noop"]["all_gather_bytes"] == 0
    assert traffic["fp16"]["all_reduce_bytes"] == traffic["bf16"]["all_reduce_bytes"] == whole / 2
    assert 0 < traffic["random-k"]["all_reduce_bytes"] < whole / 80
    projection = traffic["random-projection"]
    filled = [-(-size // 1024) * 1024 for size in projection["bucket_sizes"] if size > 512]
    assert len(filled) == projection["num_buckets"] and sum(projection["bucket_sizes"]) * 4 == whole
    assert projection["all_reduce_bytes"] == sum(4 * (size // 10) for size in filled)
    assert 0 < traffic["powersgd"]["all_reduce_bytes"] < whole
    four_bits = traffic["quantise"]["all_gather_bytes"]
    assert whole / 8 < four_bits < whole / 8 * 1.4  # scales: two float32 for 64 elements
    for report in reports[world_size]:
        assert report["traffic"] == traffic | {"threshold": report["traffic"]["threshold"]}


def test_the_buckets_did_change_after_the_first_step(reports):
    """Otherwise nothing of the above says that residuals survive it."""
    assert len(reports[2][0]["traffic"]["sign"]["layouts"]) == 2


@cases("what", *PLANTED)
def test_a_planted_fault_of_one_rank_is_seen(reports, what):
    """On rank 1: no error feedback, other random indices, one bit changed after decoding."""
    told = reports[2][0]["planted"][what]["verification"]
    assert told["status"] == "deviates", told
    if what == "one bit":
        assert "the ranks hold different gradients" in told["reason"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("squeezed")
    shutil.copy(Path(__file__).with_name("compression_suite.py"), folder)
    ended = scalebench_in(
        folder,
        *("run", "compression_suite.py", "--gpus", "1,2", "--quick", "--no-report", "--verbose"),
        *("--out", "r", "-k", "none or noop or topk or powersgd or batched"),
    )
    assert ended.returncode in (0, 4), ended.stderr  # 4: this torch's batched hook does not work
    assert "what compression sends and costs" in ended.stdout
    return folder / "r"


@pytest.fixture(scope="module")
def squeezed(run_folder):
    rows = json.loads((run_folder / "summary.json").read_text())["rows"]
    return {(row["case"], row["world_size"]): row for row in rows}


def test_the_trace_sees_the_bytes_that_the_hook_counted(squeezed):
    """Two independent counts: the hook's own, and the sizes of the traced operations."""
    for case in ("none", "topk"):
        row = squeezed[case, 2]
        (kind,) = [k for k in row["communication"] if k["ordinal"] is None]
        ranks = 2 if kind["kind"] == "all_gather" else 1
        assert kind["num_bytes"] == ranks * row["compression"]["payload_bytes"]
        assert row["payload_bytes"] == row["compression"]["payload_bytes"]


def test_every_collective_of_powersgd_is_in_the_trace(squeezed):
    """Its hook begins two of three all-reduces in callbacks, on gloo's threads."""
    row = squeezed["powersgd", 2]
    assert row["correctness"]["status"] == "verified"
    assert "communication unseen" not in row["stamps"]
    (kind,) = [k for k in row["communication"] if k["ordinal"] is None]
    assert kind["num_bytes"] == row["compression"]["payload_bytes"] > 0
    assert row["compression"]["communicate_s"]["value"] > 0


def test_ranks_of_powersgd_are_seen_to_hold_the_same_memory(run_folder):
    """Its hook goes on in callbacks, on whichever thread is there first; a counter is 4 bytes."""
    cells = load_run(run_folder).results
    for case in ("powersgd", "batched"):
        one, other = (rank.memory for rank in cells[f"squeezed.{case}.n2.inspect"].ranks)
        assert one.allocated_bytes == pytest.approx(other.allocated_bytes, abs=64)
        assert one.communication_bytes == pytest.approx(other.communication_bytes, abs=64)
        assert one.gradients_bytes == other.gradients_bytes


def test_encoding_and_losses_of_a_method_stand_beside_those_of_none(squeezed):
    row, none = squeezed["topk", 2], squeezed["none", 2]
    times = row["compression"]
    encode_s, decode_s, codec_s = (
        times[f"{of}_s"]["value"] for of in ("encode", "decode", "codec")
    )
    assert encode_s > 0 and decode_s > 0
    assert encode_s + decode_s == pytest.approx(codec_s)
    assert times["break_even_byte_per_s"]["value"] > 0
    assert row["budget"]["codec_s"] > 0 == none["budget"]["codec_s"]
    losses = times["losses"]
    assert losses["equal_steps"] >= 10 and losses["loss_of_none_after_steps"] > 0
    assert none["compression"]["losses"]["steps_to_target"] is not None


def test_noop_is_a_bound_whose_steps_are_attributed_all_the_same(squeezed):
    row = squeezed["noop", 2]
    assert row["status"] == "ok" and row["comm_s"]["value"] == 0
    assert any(stamp.startswith("bound") for stamp in row["stamps"])
    assert row["correctness"]["status"] == "unverified" and row["loss_last"] is not None


def test_what_upstream_cannot_do_is_skipped_with_its_reason(squeezed):
    row = squeezed["batched", 2]
    if row["status"] == "ok":
        pytest.skip("this torch's batched PowerSGD hook works")
    assert row["status"] == "skipped"
    assert "batched PowerSGD hook fails: AssertionError" in row["reason"]


def test_sparse_gradients_are_refused_in_one_line(scalebench, project, troubled):
    arguments = ("--gpus", "1", "-k", "fp16", *SHORT)
    done = scalebench("run", "compression", *arguments, "--workload", "troubled:sparse_embedding")
    assert done.returncode == 2
    line = done.stderr.splitlines()[-1]
    assert "The workload's table has sparse gradients, which no communication hook supports" in line
    assert "run suite ddp" in line


@cases(
    "strategy, words",
    ('Compressed(method="zip")', ["no compression method 'zip'", "Valid: bf16"]),
    ('Ddp(method="fp16")', ["method", "Extra inputs"]),
)
def test_a_suite_with_a_wrong_method_is_one_line(in_process, project, strategy, words):
    (project / "wrong.py").write_text(
        "from scalebench import Case, Compressed, Ddp, Suite\n"
        f'SUITE = Suite(name="w", question="?", cases=(Case(name="c", strategy={strategy}),))\n'
    )
    line = complaint(in_process("run", "wrong.py", "--gpus", "2"))
    assert all(word in line for word in words), line


if __name__ == "__main__":
    main(run_rank)
