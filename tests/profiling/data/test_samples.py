"""Allowed results of data[i], and errors for samples that fail or change."""

import itertools
import os
import traceback

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from hocket.errors import InputError
from hocket.profiling.capture.capture import capture
from hocket.profiling.checks.index_errors import refusal
from hocket.profiling.data.checksums import difference, sums_of
from hocket.profiling.data.repeatable import check_reads, check_repeatable, reads_of
from hocket.profiling.data.source import MAX_LOADERS, check_loaders
from hocket.profiling.job.job import Job
from hocket.profiling.measure.worker_costs import WorkerCosts
from tests.runtime.helpers.plans import momentum


class Data:
    """Dataset: sample i is the result of a function of i."""

    def __init__(self, make, samples=40):
        self.make, self.samples = make, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, i):
        return self.make(i)


def good(i):
    return torch.full((3,), float(i)), torch.tensor(i % 4)


def job_of(make, **options):
    return Job(nn.Linear(3, 4), functional.cross_entropy, Data(make, **options), momentum, 4)


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    "error", [ValueError("boom"), IndexError("list index out of range"), StopIteration(), KeyError("a")]
)
def test_an_error_inside_a_sample_names_it(error):
    """One error names the sample, the exception, and the user's own line."""

    def make(i):
        if i == 5:
            raise error
        return good(i)

    found = refused(lambda: job_of(make).batch([3, 5]))
    assert found.place == "Job.data[5]"
    assert found.found.startswith(type(error).__name__)
    assert 'test_samples.py", line' in found.next_step
    assert "raise error" in found.next_step
    assert "hocket/profile" not in found.next_step
    assert str(found).count(found.found) == 1
    assert ("len(data) says 40 samples" in found.next_step) == (not isinstance(error, ValueError))


@pytest.mark.parametrize(
    ("value", "found", "advice"),
    [
        ((np.zeros(3), torch.tensor(0)), "item0 of type ndarray", "torch.as_tensor"),
        ((torch.zeros(3), np.int64(3)), "item1 of type int64", ".item()"),
        ((torch.zeros(3), True), "item1 of type bool", "int(flag)"),
        ((torch.zeros(3), None), "item1 of type NoneType", "Leave it out"),
        ((torch.zeros(3), "cat"), "item1 of type str", "numbers"),
        ({"x": [1, 2]}, "x of type list", "torch.tensor(values)"),
        (np.zeros(3), "a value of type ndarray", "torch.as_tensor"),
        (3, "a value of type int", ""),
        ("ab", "a value of type str", "numbers"),
        ((), "nothing", ""),
    ],
)
def test_what_is_no_sample(value, found, advice):
    """An invalid item is refused with its type and the conversion to a tensor."""
    error = refused(lambda: job_of(lambda i: value).batch([7]))
    assert (error.place, error.found) == ("Job.data[7]", found)
    assert advice in error.next_step


def test_images_have_an_advice():
    """A PIL image is refused with advice, by the module of its type."""
    image = type("Image", (), {"__module__": "PIL.Image"})()
    assert "pil_to_tensor" in refused(lambda: job_of(lambda i: (image,)).batch([0])).next_step


def test_data_whose_length_changes():
    """Data that change their length are refused: the length determines the order."""
    job = job_of(good)
    job.data.samples = 41
    error = refused(lambda: job.batch_at(0, 2))
    assert (error.place, error.found, error.expected[:2]) == ("Job.data", "41 samples", "40")


def counting():
    numbers = itertools.count()
    return lambda i: (torch.full((3,), float(next(numbers))), torch.tensor(0))


def reusing():
    """One tensor for all samples, changed in place."""
    kept = torch.zeros(3)
    return lambda i: (kept.fill_(i), torch.tensor(0))


BAD = {
    "system": lambda i: (torch.tensor(list(os.urandom(3))).float(), torch.tensor(0)),
    "label": lambda i: (torch.zeros(3), torch.tensor(int(np.random.default_rng().integers(2**62)))),
    "nan": lambda i: (
        torch.zeros(3).masked_fill_(torch.tensor(list(os.urandom(3))) > 127, float("nan")),
        torch.tensor(0),
    ),
    "counter": counting(),
    "in place": reusing(),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_sample_that_changes_is_found(kind):
    """A sample that differs at the second read is named, in inputs and in labels."""
    error = refused(lambda: check_repeatable(job_of(BAD[kind])))
    assert error.place.startswith("Job.data[")
    assert error.found == f"other values of item{int(kind == 'label')} at the second read"
    assert "global generators" in error.next_step


def test_samples_that_stay():
    """Plain data and seeded draws of every type pass.

    Differences by rounding between two kinds of machines pass too.
    """

    def make(i):
        return (
            torch.randn(3),
            torch.rand(2, dtype=torch.bfloat16),
            torch.randn(2, dtype=torch.cfloat),
            torch.rand(()) > 0.5,
        )

    check_repeatable(job_of(good))
    check_repeatable(job_of(make))
    other = job_of(lambda i: tuple(t if t.dtype == torch.bool else t * (1 + 1e-7) for t in make(i)))
    check_reads(other, [reads_of(job_of(make)), reads_of(other, backwards=True)])


def test_data_that_two_workers_made_otherwise():
    """Datasets that differ between workers are found, in values, order or number.

    Each worker alone is consistent.
    """
    jobs = [job_of(lambda i, k=k: (torch.zeros(3), torch.tensor((i + k) % 4))) for k in range(2)]
    error = refused(lambda: check_reads(jobs[0], [reads_of(job) for job in (jobs[0], jobs[0], jobs[1])]))
    assert error.found == "other values of item1 on worker 2 than on worker 0"
    assert "manual_seed" in error.next_step
    kept = [{}, {}]  # of the first read, with the draws of that place
    jobs = [job_of(lambda i, k=k: k.setdefault(i, (torch.rand(3), torch.tensor(0)))) for k in kept]
    error = refused(lambda: check_reads(jobs[0], [reads_of(jobs[0]), reads_of(jobs[1], backwards=True)]))
    assert error.found == "other values of item0 on worker 1 than on worker 0"
    jobs = [job_of(good, samples=n) for n in (40, 41)]
    assert refused(lambda: check_reads(jobs[0], [reads_of(job) for job in jobs])).found == "41 samples on worker 1"


def test_a_sample_that_ends_the_process():
    """sys.exit in data[i] is an error of the sample, with its place in the user's code."""

    def make(i):
        if i == 3:
            raise SystemExit("no more data")
        return good(i)

    error = refused(lambda: job_of(make).batch([2, 3]))
    assert (error.place, error.found) == ("Job.data[3]", "SystemExit: no more data")


@pytest.mark.parametrize("bad", [1, 30])
def test_a_target_out_of_range_names_its_sample(bad):
    """A target out of range is reported with sample, item and value.

    Capture and measurement report it in the same way.
    """

    def make(i):
        return good(i)[0], torch.tensor(9 if i == bad else 1)

    job = job_of(make)

    def train():
        loop = WorkerCosts(capture(job, 4), 4, torch.device("cpu"))
        for _ in range(10):
            loop.once(float)

    error = refused(train)
    assert error.place == f"Job.data[{bad}]"
    assert error.found == "9 in item1 (IndexError: Target 9 is out of bounds.)"


def test_where_torch_does_not_say_the_value():
    """If torch does not give the value, all samples are listed with their extremes.

    Other errors are not attributed to the data.
    """
    batch = {"x": torch.tensor([[0, 2], [7, 1]]), "y": torch.rand(2)}
    error = refusal(IndexError("index out of range in self"), [4, 6], batch)
    assert error is not None
    assert error.place == "Job.data, samples 4, 6"
    assert "x from 0 in sample 4 to 7 in sample 6" in error.found
    assert refusal(RuntimeError("mat1 and mat2 shapes cannot be multiplied"), [4, 6], batch) is None
    assert refusal(IndexError("index out of range in self"), [4, 6], {"y": torch.rand(2)}) is None


def test_only_own_frames_are_shown():
    """An error inside a library is shown with the user's line that called it."""
    found = refused(lambda: job_of(lambda i: torch.zeros(2).reshape(3)).batch([0]))
    assert found.found.startswith("RuntimeError: shape '[3]' is invalid")
    assert len(traceback.format_exception(found)) > 2
    assert "torch.zeros(2).reshape(3)" in found.next_step


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool])
def test_every_integer_of_a_sample_is_compared(dtype):
    """One integer that differs is found, wherever it is in a large item."""
    one = torch.arange(2 * 5000).reshape(2, 5000).to(dtype)
    for position in (0, 1, 2047, 4999):
        other = one.clone()
        other[1, position] = 1 - other[1, position].to(torch.int64) % 2
        ours, theirs = sums_of({"x": one}), sums_of({"x": other})
        assert (difference(ours[0], theirs[0]), difference(ours[1], theirs[1])) == ("", "x")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("begin", [0, 1])
@pytest.mark.parametrize("shape", [(2048,), (64, 64), (3, 50, 50)])
def test_floats_in_every_second_position_are_compared(dtype, begin, shape):
    """A part of the floats of a large item is compared, in positions without a period."""
    one = torch.linspace(-1, 1, 2 * int(np.prod(shape))).reshape(2, *shape).to(dtype)
    other = one.clone()
    other[..., begin::2] = -other[..., begin::2]
    for ours, theirs, again in zip(sums_of({"x": one}), sums_of({"x": other}), sums_of({"x": one * 1}), strict=True):
        assert difference(ours, theirs) == "x"
        assert difference(ours, again) == ""


def test_integers_that_change_at_every_second_position_are_refused():
    """Labels that differ at each read are found before training, also in a long item of which half is constant."""

    def make(i):
        labels = torch.full((2048,), i % 4)
        labels[1::2] = torch.tensor(list(os.urandom(1024))) % 4
        return torch.full((3,), float(i)), labels

    with pytest.raises(InputError, match="item1"):
        check_repeatable(job_of(make))


@pytest.mark.parametrize(("samples", "more"), [(16, False), (17, True)])
def test_sixteen_samples_are_listed_and_no_more(samples, more):
    """What is left out is said, and only then."""
    batch = {"x": torch.arange(samples)}
    error = refusal(IndexError("index out of range in self"), list(range(samples)), batch)
    assert error is not None
    assert error.place == f"Job.data, samples {', '.join(map(str, range(16)))}{', ...' if more else ''}"


def test_a_worker_has_at_most_256_loaders() -> None:
    """Fewer than none, more, and what is no whole number are refused."""
    check_loaders(MAX_LOADERS)
    for count in (-1, MAX_LOADERS + 1, "2", True):
        with pytest.raises(InputError, match="from 0 to 256"):
            check_loaders(count)
