from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    default_collate,
)
from torch.utils.data.dataloader import _BaseDataLoaderIter

from scalebench.worker.attach.batches import Batches, Inputs, leading_of, tokens_of
from scalebench.worker.attach.checks.data import Fed
from scalebench.worker.portable import HostClock
from tests.examples import cases

NEXT = _BaseDataLoaderIter.__next__
ASK = _BaseDataLoaderIter._next_index


@pytest.fixture
def counted(monkeypatch):
    counter = Batches(HostClock())

    def asking(iterator):
        index = ASK(iterator)
        counter.asked_for(iterator, index)
        return index

    monkeypatch.setattr(_BaseDataLoaderIter, "_next_index", asking)
    monkeypatch.setattr(_BaseDataLoaderIter, "__next__", lambda one: counter.next_of(one, NEXT))
    return counter


def samples_of(counted, loader):
    """Train on each batch; return the samples of every step."""
    found = []
    for _ in loader:
        counted.backward()
        found.append(counted.take().samples)
    return found


def sentences(count):
    return [torch.ones(3 + i % 5, dtype=torch.long) for i in range(count)]


class Stream(IterableDataset):
    def __init__(self, *items):
        self.items = items

    def __iter__(self):
        return iter(self.items)


IMAGES = [(torch.zeros(3, 8 + i % 4, 8), {"boxes": torch.zeros(2, 4)}) for i in range(10)]
ROWS = [(torch.zeros(4, 4), i % 2) for i in range(10)]
VIEWS = [(torch.zeros(4), torch.zeros(4)) for _ in range(4)]
RECORDS = [{"image": torch.zeros(3, 8, 8)} for _ in range(8)]
WHOLE = [(torch.zeros(6 + i, 40), torch.zeros(6 + i)) for i in range(2)]
BUCKETS = [[0, 1, 2], [3], [4, 5]]
UNEVEN = iter([2, 1])
READS = {"sampler": BatchSampler(range(8), 3, False), "batch_size": None}


def without_some(batch):
    return default_collate([one for k, one in enumerate(batch) if k % 3])


@cases(
    "samples, data, batch_size, collate",
    # What the sampler asks for, whatever the tensors begin with.
    ([4, 4, 2], IMAGES, 4, lambda batch: tuple(zip(*batch, strict=True))),
    ([6, 6], sentences(12), 6, pad_sequence),
    ([4, 4], sentences(8), 4, torch.cat),
    ([3, 1, 2], sentences(6), {"batch_sampler": BUCKETS}, list),
    ([3, 3, 2], TensorDataset(torch.zeros(8, 2)), READS, None),
    # A stream ends with a batch that is not full.
    ([3, 3, 1], Stream(*torch.zeros(7, 5)), 3, None),
    ([6], Stream(*sentences(6)), 6, pad_sequence),
    # Samples that what collates has dropped are not counted.
    ([3, 3], ROWS, 5, without_some),
    ([1] * 5, ROWS, 2, lambda batch: default_collate(batch[1:])),
    ([2, 1], VIEWS, 2, lambda batch: default_collate(batch[: next(UNEVEN)])),
    ([4, 4], RECORDS, 4, list),
    ([None, None], RECORDS, 4, lambda batch: batch[1:]),
    ([4, 4], sentences(8), 4, lambda batch: torch.cat(batch)[None]),
    ([8], sentences(8), 8, pad_sequence),  # fewer words than sentences
    # A sample that is a whole batch does not count as one.
    ([None, None], WHOLE, 1, lambda one: one[0]),
    ([1, 1], sentences(2), 1, pad_sequence),
)
def test_samples_are_those_that_reach_the_script(counted, samples, data, batch_size, collate):
    given = batch_size if isinstance(batch_size, dict) else {"batch_size": batch_size}
    assert samples_of(counted, DataLoader(data, collate_fn=collate, **given)) == samples


def test_workers_that_read_ahead_change_no_count(counted):
    ahead = {"num_workers": 2, "persistent_workers": True, "collate_fn": pad_sequence}
    loader = DataLoader(sentences(10), batch_sampler=[*BUCKETS, [6, 7, 8, 9]], **ahead)
    assert samples_of(counted, loader) == [3, 1, 2, 4]
    next(iter(loader))  # an epoch that is left: what is on its way never comes
    counted.take()
    assert samples_of(counted, loader) == [3, 1, 2, 4]


IMAGE = (torch.zeros(3, 8, 8), 1)


@cases(
    "items, batch_size, given, told",
    ([IMAGE] * 6, 2, {(3, 8, 8): 2}, set()),
    ([(torch.zeros(5, 9), torch.zeros(5))], None, {(9,): 5}, set()),
    ([(torch.zeros(5, 8, 8, 3), torch.zeros(5))], None, {(3, 8, 8): 5}, set()),
    ([IMAGE], None, {(3, 8, 8): 1}, {"samples_doubted"}),  # no three channels are three samples
    ([(torch.zeros(5, 9), torch.zeros(5))], 1, {(9,): 5}, {"samples_doubted"}),
    ([IMAGE], 1, {(3, 8, 8): 1}, set()),
    ([IMAGE], 1, {}, set()),
    ([IMAGE] * 4, 4, {(3, 8, 8): 2}, {"trains_on_part"}),
)
def test_what_the_model_is_given_tells_if_samples_can_be_right(
    counted, items, batch_size, given, told
):
    next(iter(DataLoader(Stream(*items), batch_size)))
    counted.backward()
    found = counted.trained_as(given)
    assert {name for name in ("samples_doubted", "trains_on_part") if found[name]} == told


def test_a_batch_of_an_epoch_that_was_left_is_none_of_the_next_one(counted):
    batches, found = loader(40, 4), []
    for _ in range(2):
        for k, _batch in enumerate(batches):
            if k == 2:
                break
            counted.backward()
            found.append(counted.take())
    assert [(fed.samples, fed.others) for fed in found] == [(4, 0), (4, 0), (4, 1), (4, 0)]


@cases(
    "given, part, words, has_fewer",
    ({(33,): 8}, 1.0, 1.0, False),
    ({(32,): 8}, 1.0, 32 / 33, False),  # all but the last word
    ({(33,): 4}, 0.5, 1.0, True),
    ({(32,): 4}, 0.5, 32 / 33, True),
    ({(16,): 8}, 0.5, 32 / 33, False),  # half of each text
    ({(17,): 8}, None, 1.0, False),
    ({(32,): 4, (33,): 8}, None, 1.0, True),
)
def test_a_model_may_be_given_one_of_two_parts_of_a_batch(counted, given, part, words, has_fewer):
    next(iter(DataLoader(TensorDataset(torch.zeros(8, 33)), 8)))
    counted.backward()
    found = counted.trained_as(given, 2)
    assert (found["part"], found["trains_on_part"]) == (part, has_fewer)
    assert found["words"] == words


def test_batches_that_are_joined_are_known_by_their_rows(counted):
    batches = iter(DataLoader(TensorDataset(torch.zeros(8, 9)), 2))
    next(batches), next(batches)
    counted.backward()
    assert counted.trained_as({(9,): 4})["trains_on_all"]
    assert not counted.trained_as({(9,): 2})["trains_on_all"]
    assert not counted.trained_as({})["trains_on_all"]
    assert counted.take().most == 2


@cases(
    "batch, samples, tokens",
    (torch.zeros(8, 3), 8, 0),
    ({"labels": torch.zeros(4), "input_ids": torch.ones(4, 16, dtype=torch.long)}, 4, 64),
    ({"mask": torch.ones(4, 16), "scale": torch.tensor(2.0), "names": list("abcd")}, 4, 0),
    (SimpleNamespace(x=torch.zeros(6, 2)), 6, 0),
    ({"x": torch.zeros(39, 32), "lengths": torch.zeros(32)}, None, 0),
    ("text", None, 0),
)
def test_parts_of_a_batch_that_differ_in_length_tell_no_samples(batch, samples, tokens):
    assert (leading_of(batch), tokens_of(batch)) == (samples, tokens)


def loader(num_samples, batch_size):
    return DataLoader(TensorDataset(torch.zeros(num_samples, 2)), batch_size=batch_size)


def test_microbatches_are_added_up_and_evaluation_is_not(counted):
    train, evaluation = iter(loader(32, 4)), iter(loader(30, 10))
    for _ in range(2):
        next(train)
        counted.backward()
    fed = counted.take()
    assert (fed.samples, fed.batches) == (8, 2)
    for _ in range(3):
        next(evaluation)
    next(train)
    counted.backward()
    assert counted.take().samples == 4


def test_what_a_prefetcher_reads_without_gradients_feeds_the_training(counted):
    next(iter(loader(32, 16)))  # a look at the data
    loaders = loader(32, 4), loader(30, 10)
    for _ in range(2):
        train, evaluation = map(iter, loaders)
        samples = []
        for _ in range(4):
            with torch.no_grad():
                next(train)
            for _ in range(2):
                counted.backward()
            samples.append(counted.take().samples)
        with torch.no_grad():
            next(evaluation)
    assert samples == [4] * 4  # from the second epoch on; of the first, one step is not known


def test_an_epoch_with_another_seed_has_another_order():
    fed, sampler = Fed(), DistributedSampler(range(8), 2, 0)
    for seed, epoch, repeats in ((0, 0, 0), (1, 0, 0), (1, 1, 0), (1, 1, 1)):
        sampler.seed, sampler.epoch = seed, epoch
        for _ in range(2):  # a trial before it
            fed.begins(SimpleNamespace(sampler=sampler))
        fed.stepped()
        assert fed.repeats == repeats


def test_what_is_read_now_and_then_may_be_validation(counted):
    held_out = iter(DataLoader(TensorDataset(torch.rand(8, 2)), 4))
    found = []
    for step, _ in enumerate(DataLoader(TensorDataset(torch.rand(40, 2)), 4)):
        if step in (2, 6):
            next(held_out)
        counted.backward()
        found.append(counted.take().samples)
        if not step:
            counted.trained_as({(2,): 4})
    assert found[2:] == [8, 4, 4, 4, None, 4, 4, 4]


def test_what_is_read_while_evaluating_is_not_trained_on(counted):
    """An evaluation of few batches, without ``no_grad`` around the loader, behind a read-ahead."""
    held_out, found = loader(4, 2), []
    for _ in range(3):
        train = iter(loader(16, 4))
        next(train)
        for _ in range(3):
            counted.evaluating = False
            next(train)
            counted.backward()
            found.append(counted.take().samples)
        counted.evaluating = True
        list(held_out)
    assert found == [8, 4, 4] * 3


@cases("evaluating", (True, True), (True, False))
def test_two_batches_of_a_step_are_trained_on_whatever_mode_they_are_read_in(counted, evaluating):
    """Pseudo-labels, or a teacher that is set to evaluation in each step; one set so once."""
    labelled, unlabelled, found = loader(24, 4), loader(48, 8), []
    for epoch in range(2):
        rest = iter(labelled)
        first = iter(unlabelled)
        for step in range(6):
            counted.evaluating = evaluating[bool(epoch or step)]
            next(first)
            counted.evaluating &= evaluating == (True, False)
            next(rest)
            counted.backward()
            found.append(counted.take().samples)
    assert found[1:] == [12] * 11


class _WithoutShape:
    @property
    def shape(self):
        raise RuntimeError("has no sizes")


@cases(
    "given, passes, samples",
    ({(2,): 4}, 4, [20] + [4] * 7),  # the prompts are for rollouts, on which the model is trained
    ({(2,): 8}, 4, [20] + [4] * 7),  # two models
    ({(2,): 16}, 4, [20, 4, 4, 4, None, 4, 4, 4]),  # some may be read ahead
    ({(2,): 20}, 4, [20, 4, 4, 4] * 2),  # labelled and unlabelled
    ({(3,): 4}, 4, [20, 4, 4, 4, None, 4, 4, 4]),  # nothing is known of what it is given
    ({(2,): 4}, 1, [20] * 8),  # another optimizer trains on the others, after its first call
)
def test_what_is_read_for_rollouts_is_not_trained_on(counted, given, passes, samples):
    found = []
    for _ in DataLoader(TensorDataset(torch.rand(16 * 8 // passes, 2)), 16):
        rollouts = DataLoader(TensorDataset(torch.rand(4 * passes, 2)), 4)
        for _ in rollouts:
            counted.backward()
            if not found:
                less = counted.trained_as(given)["given_less"]
                assert less == (given.get((2,), 20) < 20)
            fed = counted.take()
            found.append(fed.samples)
            assert not fed.others
    assert found == samples


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@cases("layout", torch.strided, torch.jagged, None)
def test_a_batch_of_another_kind_reaches_the_script(counted, inputs, layout):
    def collate(rows):
        kind = torch.nested.nested_tensor
        return kind([one[0] for one in rows], layout=layout) if layout else _WithoutShape()

    dataset = TensorDataset(torch.randn(12, 8))
    for batch in DataLoader(dataset, batch_size=4, collate_fn=collate):
        nn.Identity()(batch)
        counted.backward()
        assert counted.take().samples == (4 if layout else None)
    assert inputs.elements == (96 if layout else 0)


@pytest.fixture
def inputs():
    before = nn.Module.__call__, torch.compile
    looking = Inputs()
    looking.begin()
    yield looking
    looking.end()
    assert (nn.Module.__call__, torch.compile) == before


@cases("times", 1, 2)
def test_a_whole_module_that_is_compiled_is_looked_at_from_outside(inputs, times):
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model(torch.ones(4, 8))
    for _ in range(times):
        compiled = torch.compile(model, backend="eager", fullgraph=True)
    compiled(torch.ones(4, 8)).sum().backward()
    assert inputs.elements == (32 if times == 1 else None)  # two may be parts of one model
    assert dict(inputs.rows) == ({(8,): 4} if times == 1 else {})


def test_a_function_that_is_compiled_is_left_alone(inputs):
    model = nn.Linear(8, 8)
    model(torch.ones(4, 8))
    step = torch.compile(backend="eager")(lambda given: model(given).sum())
    step(torch.ones(4, 8)).backward()
    assert inputs.elements is None
