"""Dynamic loss scaling: the scales are those of torch's scaler, and a device's stages step with one scale."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from hocket.program.program import StageShape
from hocket.runtime.update.clipping import Clipping, Squares
from hocket.runtime.update.loss.scaler import GROWTH_INTERVAL, LEAST_SCALE, LossScale, LossScaler
from tests.tiers import examples

STAGES = (StageShape((0,)),)


@examples(60)
@given(st.lists(st.booleans(), max_size=40), st.integers(1, 4))
def test_scales_are_those_of_torch(updates: list[bool], interval: int) -> None:
    """Scales after any finite and infinite updates are those of `torch.amp.GradScaler`, down to the smallest one."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    theirs = torch.amp.GradScaler("cpu", growth_interval=interval)
    theirs.scale(torch.zeros(()))
    own = LossScale()
    assert own.scale == theirs.get_scale()
    for finite in updates:
        parameter.grad = torch.tensor([1.0 if finite else math.inf])
        theirs.unscale_(optimizer)
        theirs.step(optimizer)
        theirs.update()
        own = own.after(finite, interval)
        if theirs.get_scale() < LEAST_SCALE:
            assert own.scale == LEAST_SCALE
            return
        assert own.scale == theirs.get_scale()


def test_the_interval_is_torchs_default() -> None:
    """The scale is doubled after as many updates as in torch."""
    assert torch.amp.GradScaler("cpu").get_growth_interval() == GROWTH_INTERVAL
    state = LossScale(4.0, GROWTH_INTERVAL - 2)
    assert state.after(True) == LossScale(4.0, GROWTH_INTERVAL - 1)
    assert state.after(True).after(True) == LossScale(8.0, 0)
    assert state.after(False) == LossScale(2.0, 0)


def test_stages_of_a_device_step_with_one_scale() -> None:
    """The first stage that steps changes the scale of the next losses; the other stages use the update's own scale."""
    scaler = LossScaler(LossScale(8.0))
    assert scaler.of(0) == 8.0
    assert scaler.overflows(0, False)
    assert scaler.state.scale == 4.0
    assert scaler.of(0) == 8.0
    assert scaler.overflows(0, False)
    assert scaler.state.scale == 4.0
    assert scaler.skipped == 1
    assert scaler.of(4) == 4.0
    assert not scaler.overflows(4, True)


def test_microbatches_are_counted_anew_in_each_segment() -> None:
    """The first update of the next segment has the same number, and is judged by itself."""
    scaler = LossScaler(LossScale(8.0))
    assert scaler.overflows(0, False)
    scaler.begin()
    assert scaler.of(0) == 4.0
    assert not scaler.overflows(0, True)


def test_the_smallest_scale_is_no_overflow() -> None:
    """At the smallest scale, gradients are not finite for another reason, which the nan guard looks for."""
    scaler = LossScaler(LossScale(LEAST_SCALE))
    assert not scaler.overflows(0, False)
    assert scaler.state.scale == LEAST_SCALE
    assert scaler.skipped == 0


def squares(*values: float) -> Squares:
    """Sums over all devices."""
    return Squares(torch.tensor(values if len(values) > 1 else values[0], dtype=torch.float64))


@pytest.mark.parametrize("most", [None, 2.0])
def test_factor_and_norm_are_of_gradients_without_the_scale(most: float | None) -> None:
    """Clipping and norm are those of the gradients divided by the scale."""
    plain, scaled = Clipping(most, STAGES), Clipping(most, (StageShape((0,), scaled=True),))
    assert scaled.sums_norm
    norm, scale = 4.0, 1024.0
    found = squares((norm * scale) ** 2)
    assert scaled.norm(found, scale) == norm
    expected = float(plain.factor(squares(norm**2))) / scale
    assert float(scaled.factor(found, scale)) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("most", [None, 2.0])
def test_loss_weights_and_scale_together(most: float | None) -> None:
    """A step divides by the sum of the weights and by the scale, and clips the quotient."""
    clipping = Clipping(most, (StageShape((0,), weighted=True, scaled=True),))
    norm, scale, weight = 4.0, 1024.0, 10.0
    found = squares((norm * scale * weight) ** 2, weight)
    assert clipping.norm(found, scale) == pytest.approx(norm, rel=1e-12)
    clipped = 1.0 if most is None else most / norm
    assert float(clipping.factor(found, scale)) == pytest.approx(clipped / (scale * weight), rel=1e-6)
    assert float(clipping.factor(squares(0.0, 0.0), scale)) == 0.0
