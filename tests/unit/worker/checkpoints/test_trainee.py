"""What a training continues with after a restore; a single process, so no rank is started."""

import random

import numpy as np
import pytest
import torch

from scalebench.spec.presets import PRESETS
from scalebench.worker.checkpoints.methods import Saver
from scalebench.worker.checkpoints.state import state_of
from scalebench.worker.checkpoints.store import CheckpointStore
from scalebench.worker.checkpoints.trainee import NotEqual, Trainee
from scalebench.worker.process.context import RankContext
from tests.builders.runs import make_cell

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")

SMALL = PRESETS["gpt-tiny"].model_copy(update={"layers": 1, "width": 16, "context": 8})
METHODS = ("full", "sharded", "async")
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


@pytest.mark.parametrize("method", METHODS)
def test_further_steps_and_random_numbers_are_those_of_a_run_without_a_stop(
    context, tmp_path, method
):
    checkpoint, unbroken, at_save = saved(context, tmp_path, method)
    expected = draw()
    unbroken.train(STEPS)
    after = unbroken.digests()
    again = restored(context, checkpoint, method)
    assert again.step == STEPS
    assert again.check_equal(at_save, True, method) == len(at_save) > 20
    assert draw() == expected
    again.train(STEPS)
    assert again.is_equal(after)


def test_a_save_that_is_timed_writes_tensors_alone(context, tmp_path):
    """What scalebench adds to a checkpoint is on the disk before the clock starts."""
    trainee, store = Trainee(context), CheckpointStore(tmp_path)
    trainee.train(1)
    folder = store.begin(trainee.step)
    trainee.begin_save(store, Saver(context, None), "full").wait()
    assert [path.name for path in folder.iterdir()] == ["state.pt"]
    trainee.write_facts(store)
    assert {path.name for path in folder.iterdir()} == {"state.pt", "facts.json"}


def test_a_parameter_that_differs_in_one_bit_is_named(context, tmp_path):
    checkpoint, _, at_save = saved(context, tmp_path, "full")
    again = restored(context, checkpoint, "full")
    name, parameter = next(iter(again.training.module.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[0] = torch.nextafter(parameter.view(-1)[0], torch.tensor(torch.inf))
    with pytest.raises(NotEqual, match=f"1 of .* tensors .*model.{name}"):
        again.check_equal(at_save, True, "one bit")
    assert not again.is_equal(at_save)


def test_the_state_is_in_the_order_of_the_module_as_in_a_script(context):
    """DCP divides what all ranks have in this order: another order would have another stall."""
    trainee = Trainee(context)
    trainee.train(1)
    module = trainee.training.module
    names = list(state_of(trainee.training, 0))
    assert [n for n in names if n.startswith("model.")] == [
        f"model.{n}" for n in module.state_dict()
    ]
    moments = [n for n in names if n.endswith(".exp_avg")]
    assert moments == [f"optimizer.{n}.exp_avg" for n, _ in module.named_parameters()]
