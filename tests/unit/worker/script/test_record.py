from contextlib import nullcontext

import pytest

from scalebench.records.measured.trace import ClockAlignment
from scalebench.worker.script.record import RankSeen, gaps_of, rank_fields, seen_by
from tests.builders.runs import make_script_cell
from tests.examples import cases


def gaps(outside_s, gaps=(), period=1):
    """What comes of a watch with one step of 0.1 s for each time between two steps."""
    fed = [[None, 8, 0, 0.0, 1, 0]] * len(outside_s)
    told = {"period": period, "outside_s": outside_s, "gaps": gaps, "fed": fed}
    return gaps_of(told, [0.1 * period] * (len(fed) // period))


def test_only_what_is_recognised_is_a_gap_between_steps():
    """Averaging, playing, logging: whatever else lies between two steps is training."""
    for outside_s, seen, period, found in (
        ([5.0, 0.001, 0.001, 0.3, 0.001, None], [], 1, []),
        ([0.0] * 4, [[2, 0.04, 0.01], [3, 0.0, 0.0005]], 1, [(2, 0.04, 0.01)]),
        ([0.0] * 4, [[2, 9.0, 0.04]], 1, [(2, pytest.approx(0.06), 0.04)]),
        ([0.0] * 6, [[3, 0.02, 0.0], [4, 0.03, 0.0]], 2, [(2, 0.03, 0.0)]),
    ):
        told = gaps(outside_s, seen, period)
        assert [(one.step, one.evaluation_s, one.checkpoint_s) for one in told] == found
    (whole,) = gaps([0.0] * 4, [[2, 0.04, 0.01]])
    assert whole.seconds == whole.outside_s == pytest.approx(0.05)


@cases(
    "fed, passes, told, samples",
    # four passes of a batch of 8 a step; the window begins with an epoch, whose first step
    # reads one ahead, and ends within it
    ([[40, 5]] + [[32, 4]] * 39, 4, {}, 32),
    # a short batch ends an epoch: it is trained on
    ([[32, 4]] * 39 + [[28, 4]], 4, {}, (39 * 32 + 28) / 40),
    # two passes on each batch (adversarial training); the second time every fourth is left out
    ([[16, 2]] + [[8, 1]] * 39, 2, {}, 8),
    ([[8, 1], [8, 1], [16, 2], [8, 1]] * 10, 2, {}, 8),
    ([[16, 2], [8, 1]] * 20, 2, {}, 8),
    ([[8, 1], [16, 2]] * 18 + [[16, 2]] * 4, 2, {}, 8),
    # a reader in the background, and several passes on each batch: nothing is left out
    ([[32, 2], [0, 0]] * 20, 3, {}, 16),
    ([[24, 3], [8, 1], [16, 2], [16, 2]] * 10, 4, {}, 16),
    # every other batch is left out, from the second step on
    ([[8, 1]] + [[16, 2]] * 39, 1, {"trains_on_all": True}, None),
    # the same, and two passes on each batch
    ([[8, 1]] + [[16, 2]] * 39, 2, {}, None),
    # two batches make one, and the model was given both
    ([[16, 2]] * 40, 1, {"trains_on_all": True}, 16),
    # a reader in the background takes two at a time
    ([[32, 2], [0, 0]] * 20, 1, {}, 16),
    # three steps on each batch
    ([[8, 1], [0, 0], [0, 0]] * 13 + [[8, 1]], 1, {}, None),
    ([[8, 1]] * 40, 1, {"trains_on_part": True}, None),
    ([[8, 1]] * 40, 1, {"samples_doubted": True}, None),
    # the accumulation, or the batch, warms up
    ([[8, 1]] * 34 + [[16, 2]] * 6, 1, {"backwards": [1] * 34 + [2] * 7}, None),
    ([[8 + i // 4, 1] for i in range(40)], 1, {}, None),
    # batches as large as texts are short
    ([[4 + 7 * i % 9, 1] for i in range(40)], 1, {}, 7.975),
)
def test_samples_are_those_that_were_trained_on(fed, passes, told, samples):
    found = fields_of(fed, passes, told)
    assert found["samples_per_step"] == (samples and pytest.approx(samples))


@cases(
    "other, part, samples",
    ({"batches": [7, 8], "part": 0.5}, 0.5, 4),
    ({"batches": [7, 8], "part": 0.75}, 0.25, 2),
    ({"batches": [7, 9], "part": 0.5}, 0.5, None),  # it reads other batches
    ({"batches": [7, 8], "part": 0.75}, 0.5, None),  # both are given some of the same
    ({"batches": [], "part": 0.5}, 0.5, None),
    ({"batches": [7, 8], "part": 0.5, "given_print": 1}, 0.5, None),  # the same half on both
    ({"batches": [7, 8], "part": 0.5, "given_print": 0}, 0.5, None),  # its half is not known
)
def test_ranks_that_divide_a_batch_that_all_read_train_on_their_part(other, part, samples):
    told = {"trains_on_part": True, "part": part, "checks": {"batches": [7, 8]}, "given_print": 1}
    found = fields_of([[8, 1]] * 40, 1, told, {"given_print": 2, **other})
    assert found["samples_per_step"] == samples


def test_a_word_that_only_follows_the_others_is_no_token_that_was_trained_on():
    fed = [[8, 1]] * 40
    assert fields_of(fed, 1, {}, tokens=264)["tokens_per_sample"] == 33
    assert fields_of(fed, 1, {"words": 32 / 33}, tokens=264)["tokens_per_sample"] == 32


AHEAD = [[24, 6]] + [[16, 4]] * 39
"""Two microbatches for each of two ranks; one is read ahead."""


@cases(
    "fed, other, samples",
    (AHEAD, {"given": 8, "read": 0.0}, 8),
    (AHEAD, {"given": 4, "read": 0.0}, None),  # some of what is read is left out
    (AHEAD, {"given": 8, "read": 16.0}, None),  # it has batches of its own
    (AHEAD, {"given": None, "read": 0.0}, None),
    # the last step of an epoch has fewer samples
    ([[16, 4]] + [[16, 4], [16, 4], [8, 2]] * 13, {"given": 8, "read": 0.0}, 8 * 40 / 48),
)
def test_where_one_rank_reads_for_all_each_trains_on_what_its_model_is_given(fed, other, samples):
    found = fields_of(fed, 2, {"given": 8, "trains_on_all": False}, other)
    assert found["samples_per_step"] == (samples and pytest.approx(samples))
    assert (found["facts"]["microbatches"] == 2) == (samples is not None)


@cases("loss, samples", (2.0, 8), (2.5, None), (None, 8))
def test_losses_tell_that_each_rank_takes_a_part_where_no_model_is_looked_at(loss, samples):
    told = {"checks": {"batches": [1, 2], "losses": [[0, 2.0]]}}
    found = fields_of([[8, 1]] * 40, 1, told, {"batches": [1, 2], "loss": loss})
    assert found["samples_per_step"] == samples
    assert found["facts"]["trains_on_part"] == (samples is None)


@cases("less, samples", (True, None), (False, 16))
def test_of_two_loaders_side_by_side_one_may_evaluate(less, samples):
    told = {"fed": [[None, 16, 0, 0.0, 2, 0, 1]] * 40, "given_less": less}
    assert fields_of([], 1, told)["samples_per_step"] == samples


@cases(
    "kinds, traffic, is_told",
    (["DistributedDataParallel"], [30, 30, 120], True),  # the loss alone: it is not called
    (["DistributedDataParallel"], [60, 30, 120], False),
    (["FSDPModule"], [30, 30, 120], False),
    ([], [30, 30, 0], True),  # barriers
    ([], [30, 30, 120_000], False),
)
def test_ranks_whose_gradients_stay_with_them_are_refused(kinds, traffic, is_told):
    facts = {"wrappers": [{"kind": kind} for kind in kinds]}
    told = {"facts": facts, "traffic": traffic, "num_parameters": 10_000}
    with pytest.raises(ValueError, match="separately") if is_told else nullcontext():
        fields_of([[8, 1]] * 40, 1, told, {}, ranks=2)


@cases(
    "wrappers, batches, samples",
    ([], [1, 2, 3], None),  # a pipeline or parts of layers, written by hand
    ([], [1, 1, 1], 8),  # a stand-in for data
    ([], [4, 5, 6], 8),
    ([{"kind": "DistributedDataParallel"}], [1, 2, 3], 8),
)
def test_ranks_that_read_alike_without_a_wrapper_may_share_samples(wrappers, batches, samples):
    own = [1, 1, 1] if batches == [1, 1, 1] else [1, 2, 3]
    told = {"checks": {"batches": own}, "facts": {"wrappers": wrappers}}
    found = fields_of([[8, 1]] * 40, 1, told, {"batches": batches})
    assert found["samples_per_step"] == samples


def fields_of(fed, passes, told, *others, tokens=0, ranks=1):
    """The fields of a rank; for each other rank what is to be seen of it."""
    cell = make_script_cell(ranks)
    cell = cell.model_copy(update={"steps": cell.steps.model_copy(update={"trace": False})})
    clock = ClockAlignment(method="shared clock", at_ns=0, offset_ns=0, bound_ns=0)
    raw = {
        "period": 1, "call_s": [0.1] * 40, "host_ns": [i * 10**8 for i in range(41)],
        "backwards": [passes] * 41, "fed": [[None, n, tokens, 0.0, b, 0, b] for n, b in fed],
        "explicit": False, "schedule": None, "checks": None,
        "traffic": None, "num_parameters": 1, "memory": {}, "outside_s": [0.0] * 40, "gaps": [],
        "facts": {}, "looked_at": {}, "input_elements": None, "trace_failure": None, "traces": [],
        **told,
    }  # fmt: skip
    steps = {"num_steps": 40, "schedule": None, "first_clean": 0}
    own = seen_by(raw).model_copy(update=steps)
    more = [RankSeen(**steps, **other) for other in others]
    return rank_fields(cell, raw, [own, *more], clock)
