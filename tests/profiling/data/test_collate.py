"""Batches of a job with `collate`, and items that neither the model nor the loss gets."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import default_collate

from hocket.errors import InputError
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.capture.capture import capture
from hocket.profiling.data.repeatable import check_repeatable
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import difference, likeness
from tests.runtime.helpers.plans import momentum

LONGEST = 6


class Words(nn.Module):
    """Model of padded words: mean of their embeddings, and a linear layer."""

    def __init__(self):
        super().__init__()
        self.embedding, self.linear = nn.Embedding(20, 4), nn.Linear(4, 3)

    def forward(self, ids, mask):
        return self.linear((self.embedding(ids) * mask[..., None]).sum(1))


def loss_of(output, label):
    return functional.cross_entropy(output, label)


def ragged(samples=30):
    """Samples of 1 to 6 words, as plain Python values, with a text."""
    return [
        {"words": [1 + (i + k) % 19 for k in range(1 + i % LONGEST)], "class": i % 3, "text": "a"}
        for i in range(samples)
    ]


def padded(samples, longest=LONGEST):
    """Collate ragged samples to batches of one length."""
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in zip(ids, samples, strict=True):
        row[: len(sample["words"])] = torch.tensor(sample["words"])
    labels = torch.tensor([sample["class"] for sample in samples])
    return {"ids": ids, "mask": (ids > 0).float(), "label": labels, "texts": [s["text"] for s in samples]}


def to_longest(samples):
    """Collate to the length of the longest sample of the batch, as PyTorch users often do."""
    return padded(samples, max(len(sample["words"]) for sample in samples))


def job_of(collate=padded, data=None, **options):
    return Job(Words(), loss_of, ragged() if data is None else data, momentum, 4, collate=collate, **options)


def refused(call):
    with pytest.raises(InputError) as caught:
        call()
    return caught.value


def test_ragged_samples_are_captured_and_repeatable():
    """Plain Python samples of different lengths are collated to one shape, and their texts are dropped."""
    job = job_of()
    batch = job.batch([0, 5])
    assert list(batch) == ["ids", "mask", "label"]
    assert batch["mask"].sum(1).tolist() == [1, 6]
    check_repeatable(job)
    captured = capture(job, 4)
    assert captured.batch_names.keys() == {"ids", "mask", "label"}
    assert captured.job.batch_at(0, 3)["ids"].shape == (3, LONGEST)
    assert difference(likeness(job), likeness(job_of(default_collate))).startswith("collate is default_collate and not")
    half = capture(replace(job, precision="bfloat16"), 2).job.batch([0, 5])
    assert half["mask"].dtype == torch.bfloat16
    assert list(half) == list(batch)


def test_collate_makes_real_tensors_when_the_model_is_fake():
    """A `collate` that needs numbers also works for a job that is profiled without computing."""

    def counts(samples):
        batch = padded(samples)
        assert int(batch["mask"].sum()) == sum(len(sample["words"]) for sample in samples)
        return batch

    assert sketch(job_of(counts), [2]).parameters > 0


def test_batches_of_other_shapes_are_refused_before_the_capture():
    """One error says to pad to one length, for a batch that is longer than the first batch of the job."""
    error = refused(lambda: capture(job_of(to_longest), 4))
    assert error.place == "Job.collate"
    assert "ids of shape (samples, " in error.found
    assert "as in the batch of samples" in error.expected
    assert "not to its longest sample" in error.next_step
    error = refused(lambda: check_repeatable(job_of(to_longest)))
    assert "not to its longest sample" in error.next_step
    plain = Job(
        nn.Linear(3, 4), functional.cross_entropy, [(torch.zeros(3 + i // 4), 0) for i in range(8)], momentum, 4
    )
    plain.batch([0, 1, 2, 3])
    error = refused(lambda: plain.batch([4, 5]))
    assert (error.place, error.found) == (
        "Job.data[4]",
        "item0 of shape (samples, 4) and type torch.float32, for samples 4, 5",
    )
    assert error.expected == "(samples, 3) and torch.float32, as in the batch of samples 0, 1, 2, 3"


@pytest.mark.parametrize(
    ("collate", "found"),
    [
        (lambda samples: padded(samples[1:]), "ids of shape (1, 6) for 2 samples"),
        (lambda samples: {"ids": torch.tensor(3)}, "ids of shape () for 2 samples"),
        (lambda samples: {"ids": samples}, "ids of type list"),
        (lambda samples: {"text": samples}, "text of type list"),
        (lambda samples: {"text": "a", "words": "b"}, "no tensor"),
        (lambda samples: None, "a value of type NoneType"),
        (lambda samples: samples[7], "IndexError: list index out of range, for samples 4, 5"),
        (lambda samples: [], "nothing"),
    ],
)
def test_what_is_no_batch(collate, found):
    """A result without a row for each sample, or without tensors, and an error inside the function."""
    error = refused(lambda: job_of(collate).batch([4, 5]))
    assert (error.place, error.found) == ("Job.collate", found)


def test_a_collate_that_is_no_function():
    """It is refused when the job is created."""
    assert refused(lambda: job_of(3)).place == "Job.collate"


@pytest.mark.parametrize("mixes", [True, False])
def test_rows_that_depend_on_other_samples_are_refused(mixes):
    """A `collate` that mixes samples or draws for a batch would make losses depend on the size of microbatches."""

    def collate(samples):
        batch = padded(samples)
        row = torch.randperm(LONGEST) if not mixes else torch.arange(LONGEST)
        batch["mask"] = batch["mask"][:, row].roll(int(mixes), 0) * len(samples)
        return batch

    error = refused(lambda: check_repeatable(job_of(collate)))
    assert "other values of mask" in error.found
    assert "whatever samples are collated with it" in error.next_step


def test_tuples_and_arrays_of_the_default_collate():
    """torch's `default_collate` makes tensors of arrays and numbers, here of tuples, which it returns as lists."""
    data = [(np.full(3, i, dtype=np.float32), i % 4) for i in range(8)]
    job = Job(nn.Linear(3, 4), functional.cross_entropy, data, momentum, 4, collate=default_collate)
    assert job.batch([1, 6])["item0"].tolist() == [[1] * 3, [6] * 3]
    check_repeatable(job)
    capture(job, 2)
    sequences = [(torch.arange(1 + i % 3).float(),) for i in range(9)]
    job = replace(
        job, data=sequences, loss=lambda out: out.sum(), collate=lambda s: pad_sequence([x for (x,) in s], True)
    )
    assert job.batch([0, 2])["item0"].tolist() == [[0, 0, 0], [0, 1, 2]]


class ByKey(nn.Linear):
    """Linear layer with a named input."""

    def forward(self, x):
        return super().forward(x)


@pytest.mark.parametrize("text", ["cat", None, ["a", "b"], np.zeros(2)])
@pytest.mark.parametrize(
    ("model", "loss", "sample"),
    [
        (
            ByKey(3, 4),
            lambda out, y: functional.cross_entropy(out, y),
            lambda i, text: {"x": torch.ones(3), "y": i % 4, "name": text},
        ),
        (ByKey(3, 4), nn.CrossEntropyLoss(), lambda i, text: {"x": torch.ones(3), "target": i % 4, "name": text}),
        (ByKey(3, 4), lambda out, y: functional.cross_entropy(out, y), lambda i, text: (torch.ones(3), i % 4, text)),
        (ByKey(3, 4), nn.CrossEntropyLoss(), lambda i, text: (torch.ones(3), i % 4, text)),
    ],
    ids=["keyword", "module", "position", "module and position"],
)
def test_items_that_nothing_gets_are_dropped(model, loss, sample, text):
    """Texts, None and lists may be in a sample where neither the forward nor the loss has an argument for them."""
    job = Job(model, loss, [sample(i, text if i % 2 else "b") for i in range(8)], momentum, 4)
    assert len(job.batch([0, 3])) == 2
    assert capture(job, 2).microbatch_size == 2


@pytest.mark.parametrize(
    ("model", "loss", "sample", "name"),
    [
        (ByKey(3, 4), functional.cross_entropy, (torch.ones(3), 1, None), "item2"),  # its third argument is `weight`
        (ByKey(3, 4), lambda out, *targets: out.sum(), (torch.ones(3), 1, "cat"), "item2"),
        (ByKey(3, 4), lambda out, **targets: out.sum(), {"x": torch.ones(3), "name": "cat"}, "name"),
        (ByKey(3, 4), lambda out, y: out.sum(), {"x": "cat", "y": 1}, "x"),
        (ByKey(3, 4), lambda out, y: out.sum(), {"x": torch.ones(3), "y": None}, "y"),
    ],
)
def test_items_that_the_model_or_the_loss_gets_must_be_tensors(model, loss, sample, name):
    """An item for which the forward or the loss has an argument is refused with its type."""
    error = refused(lambda: Job(model, loss, [sample] * 8, momentum, 4).batch([0, 3]))
    assert (error.place, error.found.partition(" ")[0]) == ("Job.data[0]", name)
