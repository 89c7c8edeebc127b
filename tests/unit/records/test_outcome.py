import pynvml

from scalebench.records.measured.rank import Verification
from scalebench.records.measured.trace import throttle_reasons
from scalebench.records.run import Failure, contradiction, launched_result
from tests.builders.runs import STARTED, make_cell, make_record
from tests.builders.watched import B, make_twin, sample
from tests.examples import cases

CELL = make_cell(world_size=2)
BOTH = [make_record(0), make_record(1)]
WRONG = Verification(status="deviates", reason="gradients deviate by 0.1")


def outcome(records=BOTH, failure=None, **changes):
    return launched_result(CELL, records, failure, STARTED, (0.4, 1.5), **changes)


def checked(verification):
    return [make_record(0, verification=verification), make_record(1)]


def failed(kind, rank=1):
    return Failure(rank=rank, kind=kind, message="what happened")


@cases(
    "records, failure, status, reason",
    (BOTH, None, "ok", None),
    *(
        (checked(Verification(status=known)), None, "ok", None)
        for known in ("verified", "unverified", "reference")
    ),
    (checked(WRONG), None, "failed", "gradients deviate by 0.1"),
    (
        [make_record(0, loss=[1.0, 1.0, None]), make_record(1, loss=[1.0, None, None])],
        None,
        "failed",
        "the loss is not finite at step 1 on rank 1",
    ),
    ([make_record(0)], None, "failed", "no record of rank 1"),
    ([], None, "failed", "no record of rank 0, 1"),
    (BOTH, failed("limit", rank=None), "failed", "what happened"),
    ([], failed("oom"), "oom", "rank 1: what happened"),
    ([], failed("unsupported"), "skipped", "what happened"),
    *(
        ([], failed(kind), "failed", "rank 1: what happened")
        for kind in ("exception", "peer", "signal", "limit", "exit")
    ),
)
def test_a_launch_is_well_when_it_is_whole_finite_and_correct(records, failure, status, reason):
    result = outcome(records, failure)
    assert (result.status, result.reason, result.ranks) == (status, reason, list(records))


def test_a_rank_that_the_others_did_without_is_named_and_no_failure():
    lost = Failure(rank=1, kind="signal", message="killed by SIGKILL")
    result = outcome([make_record(0)], lost=[lost])
    assert (result.status, result.lost) == ("ok", [lost])
    assert contradiction(result, CELL) is None
    without = result.model_copy(update={"lost": []})
    assert contradiction(without, CELL) == "it does not contain each of 2 ranks once"


def test_a_gpu_that_the_driver_lost_is_named_beside_the_ranks_own_words():
    """CUDA says that a launch failed; which device is gone, NVML knows."""
    twin = make_twin()
    for query in ("TotalEnergyConsumption", "PowerUsage"):
        twin.fail(f"nvmlDeviceGet{query}", pynvml.NVML_ERROR_GPU_IS_LOST, 0.3, uuid=B)
    lost, whole = (sample(one, until_s=1.0)[0] for one in (twin, make_twin()))
    told = outcome([make_record(0)], failed("exception"), node=lost)
    assert told.reason == "rank 1: what happened (NVML lost GPU 1 during this launch)"
    told = outcome([make_record(0)], failed("exception"), node=whole)
    assert told.reason == "rank 1: what happened"


def test_the_names_agree_with_nvml_s_constants():
    constants = {
        "GpuIdle": "GPU idle",
        "ApplicationsClocksSetting": "application clocks",
        "SwPowerCap": "power cap",
        "HwSlowdown": "hardware slowdown",
        "SyncBoost": "sync boost",
        "SwThermalSlowdown": "software thermal slowdown",
        "HwThermalSlowdown": "hardware thermal slowdown",
        "HwPowerBrakeSlowdown": "hardware power brake",
        "DisplayClockSetting": "display clocks",
    }
    for constant, name in constants.items():
        assert throttle_reasons(getattr(pynvml, f"nvmlClocksEventReason{constant}")) == (name,)
