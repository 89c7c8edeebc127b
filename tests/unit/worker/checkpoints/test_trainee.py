"""What a training continues with after a restore; a single process, so no rank is started."""

import random

import numpy as np
import pytest
import torch

from scalebench.spec.presets import PRESETS
from scalebench.worker.checkpoints.methods import Saver
from scalebench.worker.checkpoints.store import CheckpointStore
from scalebench.worker.checkpoints.trainee import NotEqual, Trainee
from scalebench.worker.process.context import RankContext
from tests.builders.runs import make_cell

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 16, "context": 8})
STEPS = 3
"""Trained before the save, and again after it."""


@pytest.fixture(autouse=True)
def random_numbers_go_on_afterwards():
    """Restores set the random state of the whole process; put back what other tests had."""
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])


@pytest.fixture
def context():
    cell = make_cell("plain", 1, workload=SMALL, global_batch=2, rank_batch=2)
    return RankContext(cell, 0, 0, torch.device("cpu"))


def saved(context, folder, method):
    """Train and save; return the checkpoint, the training, and its hashes at the save."""
    trainee, store = Trainee(context), CheckpointStore(folder / method)
    trainee.train(STEPS)
    for group in trainee.training.optimizer.param_groups:
        group["lr"] = 0.125  # as a schedule would leave it
    draw()
    store.begin(trainee.step)
    trainee.write_facts(store)
    trainee.begin_save(store, Saver(context, None), method).wait()
    return store.complete(trainee.step), trainee, trainee.digests()


def restored(context, checkpoint, method):
    """Return a training that continues from a checkpoint, in whatever random state it begins."""
    trainee = Trainee(context)
    draw()
    trainee.restore(Saver(context, None), method, checkpoint)
    return trainee


def draw():
    """Return the next random number of each generator."""
    return float(torch.rand(1)), random.random(), float(np.random.rand())


def test_a_parameter_that_differs_in_one_bit_is_named(context, tmp_path):
    checkpoint, _, at_save = saved(context, tmp_path, "full")
    again = restored(context, checkpoint, "full")
    name, parameter = next(iter(again.training.module.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(torch.inf))
    with pytest.raises(NotEqual, match=f"1 of .* tensors .*model.{name}"):
        again.check_equal(at_save, True, "one bit")
    assert not again.is_equal(at_save)
