"""Jobs whose data is a DataLoader, and the order of their samples."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import difference, likeness
from hocket.runtime.checkpoint.checkpoint import Position
from hocket.runtime.checkpoint.resume_checks import other_order
from tests.runtime.helpers.plans import momentum

DATA = [(torch.full((3,), float(i)), torch.tensor(i % 4)) for i in range(10)]


def job_of(data, *batch_size, **options):
    return Job(nn.Linear(3, 4), functional.cross_entropy, data, momentum, *batch_size, **options)


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


def stack(samples):
    return torch.stack([x for x, _ in samples]), torch.stack([y for _, y in samples])


def order_of(job, count=25):
    return job.batch_at(0, count)["item0"][:, 0].int().tolist()


@pytest.mark.parametrize("shuffle", [True, False])
def test_settings_of_a_loader(shuffle):
    """Dataset, batch size, order and collate function are the loader's; what the job gives has priority."""
    loader = DataLoader(DATA, 4, shuffle=shuffle, collate_fn=stack, num_workers=2, drop_last=True)
    job = job_of(loader)
    assert (job.data, job.batch_size, job.shuffle, job.collate) == (DATA, 4, shuffle, stack)
    assert order_of(job) == order_of(job_of(DATA, 4, shuffle=shuffle))
    again = replace(job, batch_size=5)
    assert (again.batch_size, again.shuffle, again.collate) == (5, shuffle, stack)
    other = job_of(loader, 2, shuffle=not shuffle, collate=default_collate)
    assert (other.batch_size, other.shuffle, other.collate) == (2, not shuffle, default_collate)
    assert job_of(DataLoader(DATA, 4)).collate is None


def test_the_order_of_the_data():
    """Without `shuffle`, each epoch has the order of the data; with it, the order that jobs always had."""
    assert order_of(job_of(DATA, 4, shuffle=False)) == [i % 10 for i in range(25)]
    shuffled = order_of(job_of(DATA, 4))
    assert order_of(job_of(DATA, 4, shuffle=True)) == shuffled
    assert shuffled[:10] != shuffled[10:20]
    assert sorted(shuffled[:10]) == list(range(10))


def test_samplers_that_torch_makes_of_shuffle():
    """The samplers of `shuffle`, also inside of a batch sampler of torch, and a subset in an order of its own."""
    assert job_of(DataLoader(DATA, 4, sampler=RandomSampler(DATA))).shuffle is True
    job = job_of(DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 5, False)))
    assert (job.batch_size, job.shuffle) == (5, False)
    assert order_of(job_of(DataLoader(Subset(DATA, [7, 1, 4]), 2)), 4) == [7, 1, 4, 7]


def test_samplers_of_torchdata():
    """The samplers of its StatefulDataLoader count as those of torch: one derives from torch's, the other does not."""

    class RandomSampler(Sampler):
        replacement = False
        num_samples = len(DATA)

    batches = type("BatchSampler", (BatchSampler,), {})
    for kind in (RandomSampler, batches):
        kind.__module__ = "torchdata.stateful_dataloader.sampler"
    loader = DataLoader(DATA, batch_sampler=batches(RandomSampler(), 5, False))
    assert (job_of(loader).batch_size, job_of(loader).shuffle) == (5, True)


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_data_loader():
    """torchdata's own loader, where it is installed."""
    torchdata = pytest.importorskip("torchdata.stateful_dataloader", reason="torchdata is not installed")
    assert job_of(torchdata.StatefulDataLoader(DATA, 5, shuffle=True)).shuffle is True
    assert job_of(torchdata.StatefulDataLoader(DATA, 5)).shuffle is False


class Own(Sampler):
    """Sampler of the user."""

    def __iter__(self):
        return iter([3, 1])

    def __len__(self):
        return 2


@pytest.mark.parametrize(
    ("options", "found", "step"),
    [
        ({"sampler": Own()}, "a Own", "torch.utils.data.Subset"),
        ({"sampler": DistributedSampler(DATA, 2, 0)}, "a DistributedSampler", "Hocket divides the samples"),
        ({"sampler": SubsetRandomSampler([1, 2])}, "a SubsetRandomSampler", "torch.utils.data.Subset"),
        ({"sampler": WeightedRandomSampler([1.0] * 10, 10)}, "a WeightedRandomSampler", "torch.multinomial"),
        ({"sampler": RandomSampler(DATA, replacement=True)}, "with replacement", "torch.randint"),
        ({"sampler": RandomSampler(DATA, num_samples=7)}, "of 7 samples an epoch", "shuffle=True"),
        ({"batch_sampler": [[0, 1], [2]], "batch_size": 1}, "its own batch_sampler (list)", "give batch_size"),
        ({"batch_size": None}, "batch_size=None", "batch_size"),
    ],
)
def test_choices_of_samples_that_are_refused(options, found, step):
    """A loader that chooses samples otherwise is refused, with what to write instead."""
    error = refused(lambda: job_of(DataLoader(DATA, **{"batch_size": 2, **options})))
    assert error.place == "Job.data"
    assert found in error.found
    assert step in error.next_step


def test_a_missing_batch_size_and_a_wrong_order():
    """Only a loader has a batch size; `shuffle` is True, False or None."""
    error = refused(lambda: job_of(DATA))
    assert (error.place, error.found) == ("Job.batch_size", "None")
    assert "DataLoader" in error.next_step
    assert refused(lambda: job_of(DATA, 2, shuffle="yes")).place == "Job.shuffle"
    assert refused(lambda: job_of(DataLoader(DATA, 16))).place == "Job.data"


def test_another_order_is_noticed():
    """A worker whose job shuffles otherwise has another job; a resumed run says that the order changes."""
    job, other = job_of(DATA, 4), job_of(DATA, 4, shuffle=False)
    torch.manual_seed(0)
    assert difference(likeness(job), likeness(replace(other, model=job.model))) == "there is shuffle as well"
    position = Position(2, 8, seed=0, data_samples=10)
    assert other_order(position, job) == ""
    assert "with shuffle=True, and the job has shuffle=False: the order" in other_order(position, other)
    assert "with shuffle=False, and the job has shuffle=True" in other_order(replace(position, shuffle=False), job)
