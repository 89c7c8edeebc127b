from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.published_sets import playbook, vtrain
from scalebench.costmodel.links.topology import TOPOLOGIES
from scalebench.errors import UsageError
from scalebench.records.summary import Summary
from scalebench.search.devices.fit import (
    UNFITTED,
    Fit,
    describe_fit,
    fit_rows,
    predicted_bytes,
    predicted_s,
)
from scalebench.search.devices.measured import row_of
from scalebench.search.devices.parameters import PARAMETERS, defaults
from scalebench.search.devices.sources import measured_rows, rows_of_summary
from scalebench.search.prediction.links import LinkValues, NominalLinks
from scalebench.search.prediction.speed import device_type, modelled_speed
from scalebench.search.scores import is_scored
from scalebench.search.space import Job
from tests.builders.repository.field_files import field_file
from tests.examples import cases
from tests.unit.search.jobs import SMALL

pytestmark = pytest.mark.slow

A100 = defaults("a100")


def job_of(gpu, values):
    links = NominalLinks(TOPOLOGIES["dgx-a100"], "", LinkValues.of(values))
    device = device_type(gpu)
    return Job(SMALL, 1, 1, modelled_speed(device, values, ""), links, device="cuda",
               receives_ahead=False, memory_limit_bytes=device.memory_bytes)  # fmt: skip


def rows(number=24, seed=0):
    """Return rows of different shapes on 8 to 32 GPUs whose step is not known yet."""
    random, made = np.random.default_rng(seed), []
    while len(made) < number:
        given = {
            "gpu": "a100", "gpus": int(random.choice([8, 16, 32])), "heads": 16, "batch": 128,
            "layers": int(random.choice([16, 24])), "width": int(random.choice([1024, 2048, 4096])),
            "sequence": 1024, "microbatch": int(random.choice([1, 2, 4])),
            "tensor": int(random.choice([1, 2, 8])), "pipeline": int(random.choice([1, 2, 4])),
            "zero": int(random.choice([0, 1])), "step_s": 1.0,
        }  # fmt: skip
        row = row_of(given)
        try:
            assert row.choice
        except ValueError:
            continue
        made.append(row)
    return made


def measured(values, noise=0.0, number=24, seed=0):
    """Return rows as a system with such parameters would have measured them."""
    some, random = rows(number, seed), np.random.default_rng(seed + 1)
    steps = predicted_s(some, Fit({"a100": values}, 1, 0, 0), job_of)
    steps = steps * np.exp(random.normal(0, noise, len(steps)))
    return [row.model_copy(update={"step_s": float(s)}) for row, s in zip(some, steps, strict=True)]


@cases("name", *PARAMETERS)
def test_a_better_device_or_link_is_never_slower(name):
    better = name in ("matrix_efficiency", "attention_efficiency", "memory_efficiency", "inside",
                      "across", "overlap")  # fmt: skip
    factor = 1.1 if better else 0.9
    other = A100._replace(**{name: getattr(A100, name) * factor})
    usual, faster = (predicted_s(rows(), Fit({"a100": v}, 1, 0, 0), job_of) for v in (A100, other))
    assert (faster <= usual * 1.001).all()  # shorter passes hide less


@cases("gpu", "h100", "gb200", "gb300")
def test_a_narrower_format_is_faster_where_the_device_has_it(gpu):
    model = modelled_speed(device_type(gpu.upper()), defaults(gpu), "").device
    assert model is not None
    half, eight, four = (model.peaks[name] for name in ("bfloat16", "fp8", "fp4"))
    assert eight == pytest.approx(2 * half)
    assert (four >= 2 * eight) if gpu != "h100" else (four == eight)


def test_messages_of_a_tensor_group_over_nodes_take_longer_than_its_links_explain():
    """Three rows of vTrain's, on A100, were 30 % off by the links alone."""
    file = field_file("predict/vtrain_ground_truth_multi_a100.csv")
    several = [row for row in vtrain(file) if row.tensor > 8]
    off = predicted_s(several, UNFITTED, job_of) / [row.step_s for row in several] - 1
    assert len(several) == 3 and np.abs(off).mean() < 0.1


def test_the_further_off_a_row_is_the_more_it_tells_of_its_system():
    (row,) = measured(A100, number=1)
    believed = {}
    for times in (1.1, 3.0):
        slower = row.model_copy(update={"step_s": times * row.step_s})
        fit = replace(fit_rows([slower], job_of), corrected=None)
        believed[times] = np.log(predicted_s([row], fit, job_of)[0] / row.step_s) / np.log(times)
    assert 0 < believed[1.1] < 0.5 < believed[3.0] < 1


def test_a_slow_row_in_8_bits_tells_more_of_8_bits_than_of_16():
    (row,) = measured(A100, number=1)
    large = {"width": 8192, "sequence": 4096, "microbatch": 4, "tensor": 1, "pipeline": 1}
    row = row.model_copy(update={"gpu": "h100", "matrices": "fp8", **large})
    slower = row.model_copy(update={"step_s": 1.4 * predicted_s([row], UNFITTED, job_of)[0]})
    fit = replace(fit_rows([slower], job_of), corrected=None)
    more = [
        np.log(predicted_s(one, fit, job_of)[0] / predicted_s(one, UNFITTED, job_of)[0])
        for one in ([row], [row.model_copy(update={"matrices": "bfloat16"})])
    ]
    assert more[0] > 1.1 * more[1] > 0


def test_few_rows_that_are_three_times_slower_are_no_outliers_and_what_is_left_is_told():
    alike = [row for row in measured(A100, number=80) if row.tensor == row.pipeline == 1]
    slow = [row.model_copy(update={"step_s": 3 * row.step_s}) for row in alike]
    off = {}
    for number in (1, 2):
        fit = fit_rows(slow[:number], job_of)
        off[number] = np.log([row.step_s for row in slow] / predicted_s(slow, fit, job_of))
        assert np.all(off[number][:number] <= fit.high)
    torn = fit_rows(
        [slow[0].model_copy(update={"step_s": 9 * slow[0].step_s}), *alike[1:3]], job_of
    )
    assert 0.9 < max(torn.errors) <= torn.high
    assert off[1][0] < 0.3 * np.log(3)
    assert np.median(off[2]) < 0.7 * np.log(3)
    told = describe_fit(fit, slow[:2], "mine.csv", "a100")
    number = 1 + int(np.argmax(np.abs(fit.errors)))
    of = f"row {number} ({slow[number - 1].gpus} GPUs), which is furthest off, took"
    assert of in told


def test_a_fit_finds_what_was_planted():
    planted = A100._replace(matrix_efficiency=0.6, launch_s=6e-5, inside=0.4)
    found = fit_rows(measured(planted), job_of, interval=False).of("a100")
    assert found.launch_s == pytest.approx(planted.launch_s, rel=0.1)
    unseen = rows(30, seed=9)
    truth = predicted_s(unseen, Fit({"a100": planted}, 1, 0, 0), job_of)
    usual, fitted = (
        predicted_s(unseen, fit, job_of) for fit in (UNFITTED, Fit({"a100": found}, 1, 0, 0))
    )
    assert np.abs(fitted / truth - 1).mean() < min(0.05, np.abs(usual / truth - 1).mean() / 3)


def test_stages_that_hand_on_slowly_are_found_in_twenty_rows():
    """On 64 nodes each message took some 0.65 s; and half the rows 3.6 times as long as told."""
    file = field_file("predict/ultrascale_playbook_h100.csv")
    several = [row for row in playbook(file) if row.gpus == 512]
    order = np.random.default_rng(0).permutation(len(several))
    known, others = ([several[i] for i in some] for some in (order[:20], order[20:]))
    off = {}
    for fit in (UNFITTED, fit_rows(known, job_of, interval=False)):
        steps = predicted_s(others, fit, job_of)
        off[fit.num_rows] = np.median(np.abs(steps / [row.step_s for row in others] - 1))
    assert 0.1 < fit.of("h100").hop_s < 1
    assert off[20] < 0.25 < 0.65 < off[0]


def test_the_interval_holds_and_widens_with_the_distance():
    planted = A100._replace(matrix_efficiency=0.6, launch_s=6e-5)
    inside = []
    for seed in (1, 2, 3):
        fit = fit_rows(measured(planted, noise=0.1, number=20, seed=seed), job_of)
        unseen = measured(planted, noise=0.1, number=60, seed=seed + 10)
        errors = np.log([row.step_s for row in unseen] / predicted_s(unseen, fit, job_of))
        low, high = fit.interval("a100", 32)
        inside.append(np.mean((errors >= low) & (errors <= high)))
    assert 0.8 <= np.mean(inside) <= 0.99
    far, other = fit.interval("a100", 2048), fit.interval("h100", 32)
    assert far[0] < low and far[1] > high and other[0] < low and other[1] > high


GOOD = "gpus,layers,width,heads,sequence,batch,step_s\n8,24,2048,16,1024,64,1.0\n"


@cases(
    "text, said",
    (GOOD.replace("heads,", "").replace(",16", ""), "lacks heads"),
    (GOOD.replace("step_s", "speed"), "lacks a speed"),
    ("GPUs\n8\n", "batch, a speed (one of step_s, tokens_per_s, tokens_per_s_per_gpu, "
     "samples_per_s); it has gpus."),
    (GOOD.replace("batch", "batch,colour").replace(",64", ",64,red"), "columns: colour"),
    (GOOD.replace("step_s", "step_s,samples_per_s").replace("1.0", "1.0,64"), "give one of"),
    (GOOD.replace(",1.0", ",1000.0"), "another unit"),
    (GOOD.replace(",1.0", ",0.001"), "another unit"),
    (GOOD.replace("batch", "batch,memory_gb").replace(",64", ",64,40000"), "Give it in 10^9"),
    (GOOD.replace(",64,", ",63,"), "do not divide"),
    (GOOD.replace(",1.0", ",-1"), "greater than 0"),
    (GOOD.replace("batch", "batch,gpu").replace(",64", ",64,z80"), "z80"),
    (GOOD.splitlines()[0] + "\n", "no measured row"),
    (GOOD.replace("batch", "batch,precision").replace(",64", ",64,float32"), "'bfloat16'"),
)  # fmt: skip
def test_a_bad_table_is_refused_in_one_line(tmp_path, text, said):
    file = tmp_path / "rows.csv"
    file.write_text(text)
    with pytest.raises(UsageError) as refused:
        measured_rows(file, "a100")
    assert said in str(refused.value) and "\n" not in str(refused.value)


def test_headers_and_devices_are_read_as_people_write_them(tmp_path):
    file = tmp_path / "rows.csv"
    file.write_text(GOOD.replace("gpus", " GPU ,GPUs").replace("8,", "H100-SXM,8,", 1).title())
    (row,) = measured_rows(file, "a100")
    assert (row.gpu, row.gpus, row.step_s) == ("h100", 8, 1.0)


def test_units_of_speed_are_the_same_step():
    given = {"gpus": 8, "layers": 24, "width": 2048, "heads": 16, "sequence": 1024, "batch": 64}
    speeds = {"step_s": 2.0, "tokens_per_s": 32768, "tokens_per_s_per_gpu": 4096,
              "samples_per_s": 32}  # fmt: skip
    made = [row_of({**given, name: value}) for name, value in speeds.items()]
    assert [row.step_s for row in made] == pytest.approx([2.0] * 4)


def test_rows_that_contradict_one_another_are_refused_and_noise_is_not(tmp_path):
    file, other = tmp_path / "rows.csv", "8,24,2048,16,1024,64,"
    file.write_text(GOOD + other + "1.05\n")
    assert len(measured_rows(file, "a100")) == 2
    file.write_text(GOOD + "8,24,2048,16,1024,128,3.0\n" + other + "2.0\n")
    with pytest.raises(UsageError, match="lines 2 and 4: one configuration takes 1 and 2 s"):
        measured_rows(file, "a100")


def test_a_run_folder_gives_its_rows_in_16_bits_and_one_on_cpu_is_refused(tmp_path):
    folder = Path(__file__).parents[3] / "reports" / "gallery" / "ddp-2-cores"
    with pytest.raises(UsageError, match="was measured on cpu: give a run on GPUs"):
        measured_rows(folder, "a100")
    summary = Summary.model_validate_json((folder / "summary.json").read_text())
    assert rows_of_summary(summary, "a10") == []  # all of it is in 32 bits
    half = [  # as a GPU would have recorded it
        row.model_copy(update={"strategy_settings": {**row.strategy_settings, "autocast": True}})
        for row in summary.rows
    ]
    found = rows_of_summary(summary.model_copy(update={"rows": half}), "a10")
    usual = [row for row in summary.rows if is_scored(row) and "1mb" not in row.case]
    assert [row.batch / row.step_s for row in found] == pytest.approx(
        [row.global_batch / row.step_s.value for row in usual]
    )
    assert (found[-1].gpus, found[-1].choice.microbatches) == (2, 4)
    errors = [
        np.abs(np.log(predicted_s(found, fit, job_of) / [row.step_s for row in found])).mean()
        for fit in (UNFITTED, fit_rows(found, job_of))
    ]
    assert errors[1] < errors[0] / 2


def peak_bytes(**options):
    given = {"gpus": 16, "layers": 24, "width": 2048, "heads": 16, "sequence": 1024, "batch": 16,
             "microbatch": 1, "tensor": 2, "zero": 1, "step_s": 1.0, **options}  # fmt: skip
    return float(predicted_bytes([row_of(given)], job_of, "a100")[0])


def test_options_of_a_framework_change_the_memory_by_what_they_say():
    usual, parameters = peak_bytes(), (24 * 12 * 2048**2 + 51200 * 2048) / 2
    mixed, accumulated = peak_bytes(state="mixed"), peak_bytes(state="accumulated")
    # float32: 8 + 8/8 bytes, mixed: 6 + 12/8, accumulated: 10 + 12/8 (ZeRO-1 of 8 ranks)
    assert mixed - usual == pytest.approx((6 + 12 / 8 - 9) * parameters)
    kept = 24 * 16 * 1024 * 2048  # activations: a pass's gradients of 2 bytes take their place
    assert accumulated - mixed == pytest.approx(4 * parameters - kept)
    alone = [peak_bytes(state=one, gpus=2, batch=1) for one in ("mixed", "accumulated")]
    assert alone[1] - alone[0] == pytest.approx(2 * parameters - kept), "no buckets of one replica"
    wider = [peak_bytes(state=one, microbatch=4, batch=64) for one in ("mixed", "accumulated")]
    assert wider[1] - wider[0] == pytest.approx(2 * parameters), "more than these gradients"
    stored = peak_bytes(gathered="stored") - usual  # two inputs of 16 bits, the other half of each
    assert stored == pytest.approx((24 + 0) * 2 * 2 * 1024 * 2048 / 2)
    inner = {"gated": True, "inner": 8192}
    kept = peak_bytes(**inner) - peak_bytes(**inner, launch="compiled")  # one factor of a product
    assert kept == pytest.approx(24 * 2 * 8192 * 1024 / 2)


def test_what_an_allocator_reserves_is_fragments_and_tensors_that_wait_until_it_is_full():
    whole = 2 * 1024 * 2048

    def over(reserved=1.5, **sizes):
        return peak_bytes(reserved=reserved, **sizes) - peak_bytes(**sizes)

    filled = (over(1.5) - over(1.25)) / 0.25
    assert filled == pytest.approx(24 * 16 * 1024 * 2048 + 10 * 1024 * 51200 / 2 + 2 * whole)
    assert over(1.5) == pytest.approx(0.5 * filled + 25 * whole), "25 tensors wait"
    alone = {"tensor": 1, "gpus": 8, "batch": 8}
    assert over(1.5, **alone) == pytest.approx(2 * (over(1.5, **alone) - over(1.25, **alone)))
    stages = {"tensor": 8, "pipeline": 4, "gpus": 32, "batch": 32}  # groups fill nodes: half of it
    fragments = 2 * (over(1.5, **stages) - over(1.25, **stages))
    assert over(1.5, **stages) - fragments == pytest.approx(25 * whole / 2)
    full = {"microbatch": 56, "batch": 448}
    assert 60e9 < peak_bytes(**full) < 80e9, "it fits without"
    assert peak_bytes(reserved=1.5, **full) == pytest.approx(80e9)


def test_stages_that_are_filled_one_after_the_other_leave_the_last_one_the_logits():
    """24 blocks of 12 h² and logits of 25 h² are 156.5 h² for each of two: 14 blocks (nanotron)."""
    sizes = {"tensor": 1, "pipeline": 2, "vocabulary": 51200, "batch": 64, "microbatch": 1}
    equal, filled = (
        peak_bytes(stages=one, memory_stage="first", **sizes) for one in ("equal", "filled")
    )
    block = 12 * 2048**2 * (8 + 8 / 8) + 2 * 32 * 1024 * 2048  # two microbatches are in flight
    assert filled - equal == pytest.approx(2 * block)


def test_a_group_that_divides_the_sequence_has_whole_tensors_at_once():
    """Four of 16 bits on each rank, of which the tokens of the others are counted here."""
    full, divided = (peak_bytes(tensor=t, gpus=8 * t, checkpointing="full") for t in (1, 4))
    tokens, table = 1024 * 2048, 51200 * 2048
    state = (24 * 12 * 2048**2 + table) * (8 + 8 / 8)
    inputs, block, logits = 24 * 2 * tokens, 32 * tokens, 10 * 1024 * 51200
    assert full == pytest.approx(state + inputs + block + logits)
    assert divided - full / 4 == pytest.approx(4 * 2 * tokens * 3 / 4)


@cases("planted, noise, better", (0.25, 0.02, 0.9), (0.0, 0.2, 1.05))
def test_what_the_model_gets_wrong_of_one_shape_is_carried_over_and_noise_is_not(
    planted, noise, better
):
    made = measured(A100, noise, 60)
    made = [
        row.model_copy(update={"step_s": row.step_s * np.exp(planted * (row.width == 2048))})
        for row in made
    ]
    fit = fit_rows(made[:24], job_of, interval=False)
    step_s = np.array([row.step_s for row in made[24:]])
    off, without = (
        np.abs(predicted_s(made[24:], one, job_of) / step_s - 1).mean()
        for one in (fit, replace(fit, corrected=None))
    )
    assert off < better * without


def test_a_first_stage_has_no_logits():
    two = {"pipeline": 2, "tensor": 1, "batch": 8, "zero": 0}  # one microbatch: logits are largest
    first, fullest = (peak_bytes(**two, memory_stage=stage) for stage in ("first", "fullest"))
    assert fullest - first == pytest.approx((2 + 4 + 4) * 1024 * 51200)


SHORT, LONG = {"width": 128, "sequence": 128}, {"width": 1024, "sequence": 262144}
GATED = {"gated": True, "inner": 512}


@cases(
    "sizes, options, times",
    (SHORT, GATED, 53 / 30),  # of small passes the host is all: a gated block has more operators
    *((SHORT, GATED | {"launch": "compiled"}, 12 / 30), (SHORT, {"launch": "compiled"}, 12 / 30)),
    *((LONG, {"attention": "triton"}, 1 / 0.55), (LONG, {"attention": "hopper"}, 1 / 1.6)),
)
def test_a_step_takes_what_its_operators_and_its_kernel_of_attention_take(sizes, options, times):
    given = {"gpus": 1, "layers": 8, "heads": 16, "batch": 1, "vocabulary": 256, "step_s": 1.0}
    values = A100._replace(launch_s=1e-4, step_s=1e-6) if sizes is SHORT else A100
    some = [row_of(given | sizes | {"gpu": "a100"} | more) for more in ({}, options)]
    plain, other = predicted_s(some, Fit({"a100": values}, 1, 0, 0), job_of)
    assert other / plain == pytest.approx(times, rel=0.05)
