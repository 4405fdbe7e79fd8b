"""ModelProfile: load seconds, deviations, validation, and optional fields."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile


def test_seconds_of_a_load_between_measured_sizes() -> None:
    """Load seconds lie on a line through the measured sizes; 0 if not measured."""
    profile = replace(chain(2, microbatch_sizes=(2, 4)), load_s=(1.0, 1.5))
    assert [profile.figures(size).load_s for size in (2, 3, 4, 6)] == pytest.approx([1.0, 1.25, 1.5, 2.0])
    assert chain(2).figures(2).load_s == 0.0
    assert ModelProfile.from_json(profile.to_json()) == profile


def test_files_without_loads_and_copies_are_read() -> None:
    """A file without load and copy seconds is read; both are 0."""
    data = json.loads(chain(2).to_json())
    del data["load_s"], data["step_call_s"]
    for layer in data["layers"]:
        del layer["copy_s"]
    found = ModelProfile.from_json(json.dumps(data))
    assert found == chain(2)
    assert found.layers[0].copy_s == 0.0


@pytest.mark.parametrize("load_s", [(1.0,), (1.0, -1.0), (1.0, float("nan"))])
def test_wrong_loads(load_s: tuple[float, ...]) -> None:
    """Load seconds are one number for each size, none negative."""
    with pytest.raises(InputError, match="load_s"):
        replace(chain(2, microbatch_sizes=(1, 2)), load_s=load_s)
    with pytest.raises(InputError, match="step_call_s"):
        replace(chain(2), step_call_s=-1.0)


@pytest.mark.parametrize(
    ("edit", "place"),
    [
        (lambda data: data["layers"][0].update(forward_s=[-1.0, 1.0]), "layers.0.forward_s"),
        (lambda data: data["layers"][0].update(backward_s=[1.0, 1e300]), "layers.0.backward_s"),
        (lambda data: data["layers"][1].update(weights_bytes=-5), "layers.1.weights_bytes"),
        (lambda data: data["layers"][1].update(step_s=1e19), "layers.1.step_s"),
        (lambda data: data["tensors"][0].update(size_bytes=[1.0, -1.0]), "tensors.0 (input).size_bytes"),
        (lambda data: data.update(whole_forward_s=[-1.0, 1.0]), "whole_forward_s"),
        (lambda data: data.update(ties=[[0, 1], [1, 2]]), "ties.1"),
        (lambda data: data.update(ties=[[-1]]), "ties.0"),
    ],
)
def test_amounts_that_nothing_has(edit: Callable[[dict[str, Any]], None], place: str) -> None:
    """Negative or huge amounts, and unknown layers, are refused with the place."""
    data = json.loads(chain(2, microbatch_sizes=(1, 2)).to_json())
    edit(data)
    with pytest.raises(InputError) as caught:
        ModelProfile.from_json(json.dumps(data), "p.json")
    assert caught.value.place.removeprefix("p.json: ") == place


def test_a_profile_without_tensors() -> None:
    """A profile without tensors between its layers is valid, also with one layer."""
    alone = replace(chain(1, microbatch_sizes=(1, 2)), tensors=())
    assert alone.tensor_bytes(2).shape == (0,)


def test_the_jobs_batch() -> None:
    """The job's batch size is optional in a file; a negative one is refused."""
    assert ModelProfile.from_json(replace(chain(2), batch_size=16).to_json()).batch_size == 16
    data = json.loads(chain(2).to_json())
    del data["batch_size"]
    assert ModelProfile.from_json(json.dumps(data)).batch_size == 0
    with pytest.raises(InputError, match="batch_size: found -1"):
        replace(chain(2), batch_size=-1)


def test_figures_belong_to_whoever_asks() -> None:
    """A caller's change of a returned column does not change later results."""
    profile = chain(3, microbatch_sizes=(1, 2))
    for ask in (lambda: profile.column("forward_s", 2), lambda: profile.tensor_bytes(1)):
        first = ask()
        expected = first.tolist()
        first += 1
        assert ask().tolist() == expected


def test_standard_deviations_between_measured_sizes() -> None:
    """Variances are interpolated linearly between sizes.

    A profile without them has none in its JSON.
    """
    profile = replace(
        chain(2, microbatch_sizes=(2, 4)), whole_forward_std_s=(1.0, 2.0), whole_backward_std_s=(3.0, 3.0)
    )
    assert profile.figures(3).deviation_s == pytest.approx((2.5**0.5, 3.0))
    assert profile.figures(6).deviation_s == pytest.approx((7.0**0.5, 3.0))
    one = replace(chain(2, microbatch_sizes=(2,)), whole_forward_std_s=(1.0,))
    assert one.figures(8).deviation_s == pytest.approx((2.0, 0.0))
    assert ModelProfile.from_json(profile.to_json()) == profile
    assert chain(2).figures(2).deviation_s == (0.0, 0.0)
    assert "std_s" not in chain(2).to_json()


@pytest.mark.parametrize("found", [(1.0,), (1.0, -1.0), (1.0, float("nan"))])
@pytest.mark.parametrize("key", ["whole_forward_std_s", "whole_backward_std_s"])
def test_wrong_deviations(key: str, found: tuple[float, ...]) -> None:
    """Deviations are one number for each size, none negative."""
    with pytest.raises(InputError, match=key):
        replace(chain(2, microbatch_sizes=(1, 2)), **{key: found})  # type: ignore[arg-type]
