"""Checkpoints over real ranks: saved at four, loaded at four, two and eight, equal bit for bit.

Also in a chain: the two train on and save, and the eight load that.
"""

import pytest

from scalebench.records.measured.recovery import RecoveryRecord
from tests.examples import cases
from tests.integration.programs import reports_of
from tests.integration.recovery.checkpoint_ranks import (
    CASES,
    LOADED_BY,
    RESTORE_FROM,
    SAVED_BY,
    STEPS_BETWEEN,
)
from tests.integration.recovery.checkpoint_ranks import cases as of_size

METHODS = ["full", "sharded", "async"]


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    return reports_of("recovery.checkpoint_ranks", folder, (SAVED_BY, *LOADED_BY))


@cases("case", *CASES)
def test_every_method_saves_as_often_as_asked_and_its_bytes_are_counted(reports, case):
    for rank, report in enumerate(reports[SAVED_BY]):
        saves = RecoveryRecord(**report[case]["saved"]).saves
        assert [save.method for save in saves] == 2 * METHODS
        assert all(0 < save.stall_s <= save.durable_s for save in saves)
        assert all((save.bytes > 200_000) == (rank == 0) for save in saves)
        assert all(len(save.quiet_s) == 2 <= len(save.later_s) for save in saves)


@cases("case", *CASES)
def test_a_restored_state_is_equal_bit_for_bit(reports, case):
    restores = RecoveryRecord(**reports[SAVED_BY][0][case]["restored"]).restores
    assert [one.method for one in restores] == METHODS
    assert all(one.num_tensors > 50 for one in restores)
    assert [one.continues_equal for one in restores] == [True] * len(METHODS)


LOADED = [(size, case) for size in LOADED_BY for case in of_size(size)]


@cases("world_size, case", *LOADED)
def test_another_number_of_ranks_loads_the_same_state(reports, case, world_size):
    for report in reports[world_size]:
        restores = RecoveryRecord(**report[case]["restored"]).restores
        loaded = [(one.saved_world_size, one.method, one.continues_equal) for one in restores]
        assert loaded == [(size, "sharded", None) for size in RESTORE_FROM[world_size]]
        assert all(one.num_tensors > 50 for one in restores)


@cases("case", *of_size(8))
def test_two_ranks_train_on_from_four_before_eight_load_what_they_saved(reports, case):
    """That the eight have the same bits as the two is checked as they load."""
    saves = RecoveryRecord(**reports[SAVED_BY][0][case]["saved"]).saves
    last = max(save.step for save in saves if save.method == "sharded")
    for report in reports[2]:
        assert report[case]["handed_on"] == [last, last + STEPS_BETWEEN]
    eight = RecoveryRecord(**reports[8][0][case]["restored"]).restores
    assert 2 in {one.saved_world_size for one in eight}


def test_one_random_number_too_many_is_noticed(reports):
    said = reports[SAVED_BY][0]["spoiled"]
    assert "are not equal to those that were saved" in said
    assert "random.0.host" in said
