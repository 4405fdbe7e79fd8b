"""Differences from one process that come from the model, despite equal updates."""

import json
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from hocket.errors import CaptureError
from hocket.planning.predict.model_differences import differences
from hocket.planning.predict.update_semantics import updates_of
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.capture.capture import capture
from hocket.profiling.job.job import Job
from hocket.profiling.layer import BATCH_STATISTICS, WRITES
from tests.program.helpers.programs import pipeline


class Followed(nn.Module):
    """Subtract a mean that the module tracks itself; `how` selects its storage."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.layer = how, nn.Linear(5, 5)
        if "attribute" in how:
            self.mean = torch.zeros(5)
        else:
            self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("seen", torch.zeros((), dtype=torch.long))
        self.register_buffer("scale", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, 5) to the same shape."""
        now = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        if "replaced" in self.how:
            self.mean = now
        else:
            with torch.no_grad():
                self.mean.copy_(now)
                self.seen.add_(1)
        return self.layer(x - self.mean) * self.scale


def job(how: str) -> Job:
    """A small job with this module after batch normalisation."""
    model = nn.Sequential(nn.BatchNorm1d(5), Followed(how), nn.Linear(5, 3))
    data = [(torch.full((5,), float(k)), torch.tensor(k % 3)) for k in range(16)]
    return Job(model, nn.CrossEntropyLoss(), data, lambda p: torch.optim.SGD(p, lr=0.1), 8)


def test_buffers_that_a_forward_writes_are_named() -> None:
    """Written buffers are named; read-only ones and running statistics are not."""
    layers = capture(job("in place")).layers
    assert [name for layer in layers for name in layer.written] == ["1.mean", "1.seen"]
    assert [note for layer in layers for note in layer.notes] == [
        BATCH_STATISTICS, f"{WRITES}1.mean", f"{WRITES}1.seen",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("how", "found"),
    [
        ("replaced", "buffer 1.mean: found replaced by another tensor"),
        ("attribute in place", "neither parameter nor buffer"),
        ("attribute replaced", "attribute 1.mean: found a tensor that the forward reads and replaces"),
    ],
)
def test_state_that_is_no_buffer_changed_in_place_is_refused(how: str, found: str) -> None:
    """State outside buffers that a forward changes in place is refused.

    It would keep its value from the capture. The error names the place and a remedy.
    """
    with pytest.raises(CaptureError, match=found) as caught:
        capture(job(how))
    assert "register_buffer" in str(caught.value) or "copy_" in str(caught.value)


def test_differences_are_said_where_batches_are_cut() -> None:
    """Differences are reported if a batch is cut: in the column and in sentences.

    A batch that runs whole has none.
    """
    plain = chain(3)
    notes = ((BATCH_STATISTICS,), (f"{WRITES}ema", f"{WRITES}seen"), ())
    layers = tuple(replace(layer, notes=own) for layer, own in zip(plain.layers, notes, strict=True))
    profile = replace(plain, layers=layers, loss_parts="the loss is a sum")
    found = differences(profile.layers, profile.loss_parts)
    assert [one.kind for one in found] == ["loss", "batch statistics", "buffers"]
    assert found[0].text == "the loss is a sum"
    assert "normalise with the statistics of each microbatch" in found[1].text
    assert found[2].text.startswith("2 buffers (ema, seen) are written in the forward: each replica writes its own")
    assert found[2].text.endswith("checkpoints hold those of the first replica")
    assert differences(plain.layers, plain.loss_parts) == ()
    cut, whole = (updates_of("flush", pipeline((1, 1)), 8, size, {}, found) for size in (2, 8))
    assert cut.text == "same but loss, batch statistics, buffers"
    assert cut.sentence("flush").startswith(
        "flush has the mathematics of one process but for loss, batch statistics, buffers: each update"
    )
    assert (whole.text, whole.differences) == ("same", ())
    late = updates_of("two_bw", pipeline((1, 1)), 8, 2, {}, found)
    assert (late.text, late.differences) == ("1 update old", found)


def test_a_profile_says_it_or_nothing() -> None:
    """Differences survive a round trip through the profile's text.

    A profile without differences has the same text as before.
    """
    plain = chain(3)
    assert "loss" not in "".join(key for key in json.loads(plain.to_json()) if key.startswith("loss"))
    for known in (plain, replace(plain, loss_parts="why", loss_weighted=True)):
        assert type(plain).from_json(known.to_json()) == known
