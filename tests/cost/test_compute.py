"""Seconds of stages, and fractions at which gradients are ready."""

from dataclasses import replace

import numpy as np
import pytest

from hocket.cost.compute import Columns, flops_factor, ready_fractions
from hocket.errors import InputError
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.layer import Layer, Tensor
from hocket.profiling.profile import ModelProfile


def tied() -> ModelProfile:
    """An embedding, a block and a head.

    The head has its own bias and shares the embedding's weights.
    """
    sizes = (1.0,)
    layers = (
        Layer("embedding", "E", sizes, sizes, (5.0,), ("e",), 100, 100, 200, step_s=1.0),
        Layer("block", "B", sizes, sizes, (6.0,), ("b",), 30, 30, 60, step_s=0.5),
        Layer("head", "H", sizes, sizes, (7.0,), ("e", "bias"), 110, 110, 220, step_s=1.25),
    )
    tensors = (Tensor("x", 0, (1,), (2.0,)), Tensor("y", 1, (2,), (3.0,)))
    return ModelProfile("tied", "cpu-core", (1,), layers, tensors)


def test_columns_are_interpolated_once() -> None:
    """Figures grow with the samples; asking twice gives the same arrays."""
    columns = Columns(chain(3, forward_s=[1.0, 2.0, 3.0]))
    assert columns.at(4).forward_s.tolist() == [4.0, 8.0, 12.0]
    assert columns.at(4) is columns.at(4)
    assert columns.at(4).load_s == 0.0


def test_bytes_of_parameters() -> None:
    """A parameter that is alone in a layer is exact.

    The rest of another layer is divided among its other parameters.
    """
    assert Columns(tied()).parameters == {"e": (100, 100, 200), "b": (30, 30, 60), "bias": (10, 10, 20)}


def test_a_shared_parameter_is_stepped_once() -> None:
    """A layer with only parameters of earlier layers adds no step."""
    profile = tied()
    assert Columns(profile).step_s((0, 1, 2)) == 2.75
    again = replace(profile, layers=(*profile.layers, replace(profile.layers[0], name="again")))
    assert Columns(again).step_s((0, 1, 2, 3)) == 2.75
    assert Columns(again).step_s((3,)) == 1.0
    copying = replace(again, layers=tuple(replace(layer, copy_s=0.25) for layer in again.layers))
    assert Columns(copying).step_s((0, 1, 2, 3)) == 2.75
    assert Columns(copying).step_s((0, 1, 2, 3), copies=True) == 3.5


def test_a_step_costs_something_besides_its_layers() -> None:
    """A step has fixed seconds for a stage with parameters to train."""
    profile = replace(tied(), step_call_s=0.5)
    assert Columns(profile).step_s((0, 1, 2)) == 3.25
    assert Columns(profile).step_s((1,)) == 1.0
    frozen = replace(profile.layers[1], gradients_bytes=0, step_s=0.0)
    assert Columns(replace(profile, layers=(profile.layers[0], frozen, profile.layers[2]))).step_s((1,)) == 0.0


def test_ready_fractions_follow_the_backward() -> None:
    """A backward of 1, 2 and 3 s: its groups are ready after 1/6, 3/6 and 6/6.

    Seconds are from the last to the first layer.
    """
    backward_s = np.array([3.0, 2.0, 1.0])
    assert ready_fractions(backward_s, (0, 1, 2), ((2,), (1,), (0,))) == pytest.approx((1 / 6, 0.5, 1.0))
    assert ready_fractions(backward_s, (1, 2), ((1, 2),)) == (1.0,)


def test_ready_fractions_never_go_back() -> None:
    """A bucket is never ready before the one that it follows.

    A backward of zero seconds has all buckets at its end.
    """
    assert ready_fractions(np.ones(2), (0, 1), ((0,), (1,), ())) == (1.0, 1.0, 1.0)
    assert ready_fractions(np.zeros(2), (0, 1), ((1,), (0,))) == (1.0, 1.0)


def test_flops_factor() -> None:
    """Half the rate takes twice the time; a missing rate is refused."""
    assert flops_factor("a", {"float32": 4.0}, {"float32": 2.0}, "float32") == 2.0
    for rates, own in ((None, {"float32": 1.0}), ({"float32": 1.0}, None), ({"float16": 1.0}, {"float32": 1.0})):
        with pytest.raises(InputError, match="float32"):
            flops_factor("a", rates, own, "float32")
