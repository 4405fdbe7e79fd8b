"""Analytic transformers have the published parameters and operations."""

import pytest

from hocket.errors import InputError
from hocket.profiling.analytic.transformer import Transformer

# Layers, hidden size, heads, parameters in billions: dissertation, Table 4.1.
TABLE_4_1 = [
    (24, 2304, 24, 1.7),
    (30, 3072, 32, 3.6),
    (36, 4096, 32, 7.5),
    (40, 6144, 48, 18.4),
    (48, 8192, 64, 39.1),
    (60, 10240, 80, 76.1),
    (80, 12288, 96, 145.6),
    (96, 16384, 128, 310.1),
    (105, 20480, 128, 529.6),
    (128, 25600, 160, 1008.0),
]


def gpt(layers: int, hidden: int, heads: int, **others: bool | int) -> Transformer:
    """A GPT as in section 4.5.1 of the dissertation."""
    return Transformer("gpt", layers, hidden, heads, 51200, 2048, **others)


@pytest.mark.parametrize(("layers", "hidden", "heads", "billions"), TABLE_4_1)
def test_parameters_of_published_models(layers: int, hidden: int, heads: int, billions: float) -> None:
    """All models of the dissertation's table 4.1, to its digits."""
    model = gpt(layers, hidden, heads)
    assert round(model.parameters / 1e9, 1) == billions
    equation = 12 * layers * hidden**2 * (1 + 13 / (12 * hidden) + (51200 + 2048) / (12 * layers * hidden))
    assert model.parameters == pytest.approx(equation + 2 * hidden, rel=1e-14)  # the last normalisation


def test_others_than_gpt() -> None:
    """Llama 2 7B and 70B have 6.738 and 68.98 billion parameters, as their weights' files do."""
    llama = Transformer("7b", 32, 4096, 32, 32000, 4096, 0, 11008, True, False, False, False, False)
    assert llama.parameters == 6_738_415_616
    llama = Transformer("70b", 80, 8192, 64, 32000, 4096, 8, 28672, True, False, False, False, False)
    assert llama.parameters == 68_976_648_192


@pytest.mark.parametrize("tensor", [1, 2, 4, 8])
def test_devices_of_a_group_have_the_whole(tensor: int) -> None:
    """Divided parameters exist once in a group, others on each device.

    Normalisations, biases after a sum and positions are not divided.
    """
    model = gpt(96, 12288, 96)
    own = model.block_parameters(tensor) * tensor
    assert own - model.block_parameters() == (tensor - 1) * 6 * model.hidden
    own = model.embedding_parameters(tensor) * tensor
    assert own - model.embedding_parameters() == (tensor - 1) * model.sequence * model.hidden


def test_what_does_not_divide() -> None:
    """Sizes that do not divide are refused with their keys."""
    with pytest.raises(InputError, match=r"^heads: found 7 heads for a hidden size of 64"):
        gpt(2, 64, 7)
    with pytest.raises(InputError, match=r"^kv_heads: found 3 for 4 heads"):
        gpt(2, 64, 4, kv_heads=3)
    with pytest.raises(InputError, match=r"^layers: found 0"):
        gpt(0, 64, 4)
    with pytest.raises(InputError, match=r"^tensor: found 8; expected a divisor of heads, 4"):
        gpt(2, 64, 4).check_tensor(8)
    with pytest.raises(InputError, match=r"^tensor: found 4; expected a divisor of kv_heads, 2"):
        gpt(2, 64, 4, kv_heads=2).check_tensor(4)
