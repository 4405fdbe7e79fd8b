"""The models have the shapes and sizes of their papers, and learn."""

import pytest
import torch

from hocket import models
from hocket.errors import InputError
from hocket.models.text import Text, text_bytes
from hocket.profiling.job.job import Job


def count(model):
    return sum(p.numel() for p in model.parameters())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: models.VGG16(), 138_357_544),
        (lambda: models.ResNet(18), 11_689_512),
        (lambda: models.ResNet(50), 25_557_032),
        (lambda: models.ResNet(152), 60_192_808),
        (lambda: models.InceptionV3(), 23_834_568),
        (lambda: models.Xception(), 22_855_952),
        (lambda: models.GPT(models.GPTSizes(n_layer=12, d_model=768, n_head=12, seq=1024, vocab=50257)), 124_439_808),
    ],
)
def test_sizes_of_the_papers_models(make, expected):
    """The full models have the published numbers of parameters.

    They are built without memory.
    """
    with torch.device("meta"):
        assert count(make()) == expected


@pytest.mark.parametrize("name", list(models.SMALL))
def test_jobs_learn(name):
    """Twenty steps on one batch lower the loss."""
    job = models.small_job(name, batch_size=8)
    assert isinstance(job, Job)
    torch.manual_seed(0)
    optimizer = job.optimizer(job.model.parameters())
    args, kwargs, loss_args, loss_kwargs = job.split(job.batch_of_step(0))
    losses = []
    for _ in range(20):
        loss = job.loss(job.model(*args, **kwargs), *loss_args, **loss_kwargs)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert sum(losses[-3:]) / 3 < losses[0]


def test_jobs_are_the_same_each_time():
    """A seed determines weights and data; the global generators are unchanged."""
    before = torch.get_rng_state()
    first, second, third = (
        models.small_job("lstm"),
        models.small_job("lstm"),
        models.small_job("lstm", seed=1),
    )
    assert torch.equal(before, torch.get_rng_state())
    assert all(torch.equal(a, b) for a, b in zip(first.model.parameters(), second.model.parameters(), strict=True))
    assert torch.equal(first.data[3][0], second.data[3][0])
    assert not torch.equal(first.data[3][0], third.data[3][0])


def test_each_pixel_has_its_own_noise():
    """The noise of an image differs from channel to channel."""
    data = models.small_job("vgg").data
    image, label = data[0]
    noise = image - data.patterns[label]
    assert noise.shape == data.patterns.shape[1:]
    assert not torch.allclose(noise[0], noise[1])


def test_untied_and_other_options():
    """Options reach the model and the data."""
    tied = models.small_job("gpt")
    untied = models.small_job("gpt", tied=False)
    assert count(untied.model) - count(tied.model) == 256 * 32
    assert models.small_job("vgg", classes=3).data.patterns.shape[0] == 3


def test_unknown_job():
    """A misspelt name is refused with the nearest one."""
    with pytest.raises(InputError) as caught:
        models.job("incepton")
    assert "'inception'" in caught.value.next_step


def test_text(tmp_path):
    """The text is a file's or the standard library's, bounded.

    Targets are the tokens that follow.
    """
    assert len(text_bytes(limit_bytes=1000)) == 1000
    assert text_bytes() == text_bytes()
    path = tmp_path / "a.txt"
    path.write_bytes(b"abcdefgh")
    data = Text(3, path)
    assert len(data) == 2
    tokens, targets = data[1]
    assert (bytes(tokens.tolist()), bytes(targets.tolist())) == (b"def", b"efg")
    with pytest.raises(IndexError):
        data[2]
    for content in (b"abcdefgh", b"a", b""):
        path.write_bytes(content)
        with pytest.raises(InputError, match=f"found {len(content)} bytes; expected more than seq = 8 bytes"):
            Text(8, path)


def test_an_inception_may_have_more_blocks_than_the_paper() -> None:
    """Further blocks of the middle part have the width of the last one."""
    widths = [
        {
            p.shape[0]
            for name, p in models.small_job("inception", blocks=(0, 5, 0)).model.named_parameters()
            if f"mixed.{k}." in name
        }
        for k in range(1, 6)
    ]
    assert widths[4] == widths[3]
    assert widths[0] != widths[3]
