"""Synthetic profiles have the given figures."""

import pytest

from hocket.errors import InputError
from hocket.profiling.analytic import synthetic
from hocket.profiling.profile import ModelProfile


def test_chain_grows_in_proportion_to_the_microbatch():
    """A microbatch of 4 costs four times the seconds and bytes of one sample."""
    profile = synthetic.chain(3, forward_s=[1, 2, 3], activation_bytes=10, weights_bytes=[0, 5, 6])
    assert profile.column("forward_s", 4).tolist() == [4, 8, 12]
    assert [t.size_bytes[2] for t in profile.tensors] == [40, 40, 40]
    assert [layer.weights_bytes for layer in profile.layers] == [0, 5, 6]
    assert [(t.source, t.targets) for t in profile.tensors] == [(-1, (0,)), (0, (1,)), (1, (2,))]


def test_skips_are_further_readers_of_the_same_tensor():
    """A skip connection adds a target to the source's one output."""
    profile = synthetic.chain(4, skips=[(0, 3)])
    assert profile.tensors[1].targets == (1, 3)
    with pytest.raises(InputError, match="skips"):
        synthetic.chain(4, skips=[(3, 1)])


def test_wrong_number_of_figures_is_refused():
    """Figures are one number for all layers, or one for each layer."""
    with pytest.raises(InputError, match="found 2 values; expected one, or 3"):
        synthetic.chain(3, forward_s=[1, 2])


@pytest.mark.parametrize("profile", [synthetic.branching(12, seed=4), synthetic.cells(4)], ids=lambda p: p.name)
def test_graphs_round_trip_and_repeat(profile):
    """A generated graph is the same each time and survives JSON."""
    again = synthetic.cells(4) if profile.name.startswith("cells") else synthetic.branching(12, seed=4)
    assert again == profile
    assert ModelProfile.from_json(profile.to_json()) == profile
