"""Iterable datasets: the stream of their samples by position, its epochs, and its state."""

import random
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset

from hocket.errors import InputError
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.capture.capture import capture
from hocket.profiling.checks.verify import verify
from hocket.profiling.data.iterable import FIRST, IterableSamples, StreamState
from hocket.profiling.data.repeatable import check_reads, check_repeatable, reads_of
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import difference, likeness
from hocket.runtime.engine.inline import run_inline
from hocket.runtime.stage.executable import Executable
from hocket.training.verify.reference_loop import plain_loop
from tests.runtime.helpers.plans import Case, momentum


class Numbers(IterableDataset):
    """Stream of `length` numbers an epoch, with noise of every generator; it counts what it gives."""

    def __init__(self, length=10):
        self.length, self.given, self.epoch = length, 0, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        for i in range(self.length):
            self.given += 1
            noise = torch.rand(()) + random.random()
            yield torch.full((3,), 100.0 * self.epoch + i) + noise / 10, i % 4


class Kept(Numbers):
    """The same numbers, with a state."""

    def __init__(self, length=10):
        super().__init__(length)
        self.at = 0

    def __iter__(self):
        while self.at < self.length:
            self.at, i = self.at + 1, self.at
            self.given += 1
            noise = torch.rand(()) + random.random()
            yield torch.full((3,), 100.0 * self.epoch + i) + noise / 10, i % 4
        self.at = 0

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Buffered(Kept):
    """Numbers through a shuffle buffer, which the state leaves out."""

    def __iter__(self):
        held = []
        for sample in super().__iter__():
            held.append(sample)
            if len(held) == 5:
                yield held.pop(random.randrange(5))
        yield from held


def job_of(data, batch_size=4, **options):
    torch.manual_seed(0)
    return Job(nn.Linear(3, 4), functional.cross_entropy, data, momentum, batch_size, **options)


def numbers_of(job, position, count):
    return [tuple(x.tolist()) for x in job.batch_at(position, count)["item0"]]


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("data", [Numbers, Kept, Buffered])
def test_a_sample_follows_from_its_position(data):
    """Any pieces in any order give the samples of one pass, over epochs of 10 and far behind what is kept."""
    whole = numbers_of(job_of(data()), 0, 100)
    job = job_of(data())
    for start in (30, 0, 90, 25, 7, 95):
        assert numbers_of(job, start, 5) == whole[start : start + 5]
    numbers = [int(x[0]) for x in whole]
    assert sorted(numbers[10:20]) == list(range(100, 110))
    assert numbers_of(replace(job, seed=1), 0, 10) != whole[:10]
    assert numbers_of(job, 0, 10) == whole[:10]
    torch.manual_seed(3)
    before = torch.get_rng_state()
    numbers_of(job, 40, 3)
    assert torch.equal(torch.get_rng_state(), before)


def test_recent_samples_are_kept():
    """Reading forward iterates once; positions of the last two batches are not iterated again, others are."""
    data = Numbers(1000)
    job = job_of(data, 100)
    numbers_of(job, 400, 10)
    assert data.given == 410
    numbers_of(job, 210, 10)
    assert data.given == 410
    numbers_of(job, 209, 1)
    assert data.given == 410 + 210


@pytest.mark.parametrize("data", [Numbers, Kept, Buffered])
def test_everything_that_reads_samples_reads_a_stream(data):
    """Capture, verification, fingerprint, sketch and the check of two reads work without a length."""
    job = job_of(DataLoader(data(), 4, num_workers=1))
    assert isinstance(job.data, IterableSamples)
    assert (job.batch_size, job.samples) == (4, FIRST)
    sketch(job, [2])
    captured = capture(replace(job, precision="bfloat16"), 4)
    assert captured.job.data is job.data
    assert verify(capture(job, 4))
    assert difference(likeness(job), likeness(job_of(data()))) == ""
    check_repeatable(job)
    check_reads(job, [reads_of(job), reads_of(job_of(data()), backwards=True)])
    assert job.data.trusted == (data is not Buffered)


def test_two_stages_in_one_process_have_the_losses_of_a_plain_loop():
    """A pipeline reads a stream at two positions at once, over several epochs."""
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4))
    graph = capture(Job(model, functional.cross_entropy, Numbers(), momentum, 8), 2)
    plan = Case("flush", (1, 1)).plan(graph)
    result = run_inline(Executable(graph, plan.layout(graph), plan.compile(graph)), 4)
    expected = plain_loop(graph.job, 8, 4).weights
    found = {name: tensor for own in result.weights.values() for name, tensor in own.items()}
    assert all(torch.allclose(found[name], expected[name], rtol=1e-5, atol=1e-6) for name in expected)


@pytest.mark.parametrize("position", [3, 10, 14, 20])
def test_a_state_is_restored_without_reading_what_came_before(position):
    """A new process continues with the same samples, inside an epoch and at its end, and can still go back."""
    whole = numbers_of(job_of(Kept()), 0, 40)
    first = job_of(Kept())
    numbers_of(first, 0, position)
    assert first.data.state_at(position - 1) is None
    state = first.data.state_at(position)
    assert state is not None
    job = job_of(Kept())
    check_repeatable(job)
    job.data.restore(position, state)
    job.data.dataset.given = 0
    assert numbers_of(job, position + 2, 6) == whole[position + 2 : position + 8]
    assert job.data.dataset.given == 8
    assert numbers_of(job, position, 1) == whole[position : position + 1]
    numbers_of(job, position, 200)
    assert numbers_of(job, position + 1, 5) == whole[position + 1 : position + 6]
    assert numbers_of(job, 0, 40) == whole
    other = job_of(Numbers())
    other.data.restore(position, state)
    assert numbers_of(other, position, 5) == numbers_of(job_of(Numbers()), position, 5)


def test_a_state_that_restores_other_samples_is_not_used():
    """The check before the first step finds that a shuffle buffer is missing; the samples stay those of one pass."""
    whole = numbers_of(job_of(Buffered()), 0, 30)
    job = job_of(Buffered())
    check_repeatable(job)
    assert numbers_of(job, 0, 30) == whole
    assert job.data.state_at(30) is None


@pytest.mark.parametrize(
    ("state", "place", "found"),
    [
        ({"at": torch.zeros(2)}, "Job.data.state_dict()['at']", "a value of type Tensor"),
        ({"at": [1, (2, 3)]}, "Job.data.state_dict()['at'][1]", "a value of type tuple"),
        ({1: 2}, "Job.data.state_dict()", "a value of type dict with keys that are no texts"),
        (float("nan"), "Job.data.state_dict()", "nan"),
    ],
)
def test_a_state_that_is_not_plain_data(state, place, found):
    """It is refused before the first step, with the part that cannot be kept in a checkpoint."""
    data = Kept()
    data.state_dict = lambda: state
    error = refused(lambda: check_repeatable(job_of(data)))
    assert (error.place, error.found) == (place, found)


class Once(IterableDataset):
    """A generator that is made once."""

    def __init__(self, samples):
        self.samples = iter(samples)

    def __iter__(self):
        return self.samples


class Failing(Numbers):
    """Numbers, of which one fails."""

    def __iter__(self):
        for i, sample in enumerate(super().__iter__()):
            if i == 5:
                raise ValueError("boom")
            yield sample


def test_streams_that_fail():
    """An empty stream, one that cannot begin again, one that raises, and an order that a stream cannot have."""
    samples = [(torch.zeros(3), 1)] * 6
    error = refused(lambda: job_of(Once([])).batch_at(0, 1))
    assert error.found == "no sample in epoch 0 (position 0)"
    job = job_of(Once(samples))
    assert len(job.batch_at(0, 6)) == 2
    error = refused(lambda: job.batch_at(6, 1))
    assert error.found == "no sample in epoch 1 (position 6)"
    assert "return a new iterator at each call" in error.next_step
    job = job_of(Failing())
    for _ in range(2):  # a generator that has raised is at its end; the second read does not go on with another epoch
        error = refused(lambda: job.batch_at(4, 2))
        assert (error.place, error.found) == ("Job.data[5]", "ValueError: boom")
        assert "raise ValueError" in error.next_step
    assert refused(lambda: job_of(Numbers(), shuffle=True)).place == "Job.shuffle"
    assert refused(lambda: job_of(DataLoader(Numbers(), batch_size=None))).place == "Job.data"
    assert refused(lambda: job_of(Numbers(), None)).place == "Job.batch_size"


def test_an_endless_stream_and_ragged_samples():
    """A stream without an end is read as far as it is trained, with `collate` as well."""

    class Endless(IterableDataset):
        def __iter__(self):
            i = 0
            while True:
                yield [1.0] * (1 + i % 3)
                i += 1

    def collate(samples):
        return torch.tensor([one + [0.0] * (3 - len(one)) for one in samples])

    job = replace(job_of(Endless(), collate=collate), loss=lambda output: output.square().mean())
    check_repeatable(job)
    assert capture(job, 3).job.batch_at(1000, 2)["item0"].tolist() == [[1, 1, 0], [1, 1, 1]]
    job.data.restore(5, StreamState(0, None))
    assert job.batch_at(5, 1)["item0"].tolist() == [[1, 1, 1]]
