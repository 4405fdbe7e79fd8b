"""Mixtures of experts by sizes: parameters, operations and bytes."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level
from hocket.planning.mesh.plan_model import search_sizes
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.experts import Experts
from hocket.profiling.analytic.operators import MemoryPass, flops_of
from hocket.profiling.analytic.sizes import open_model, published
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.analytic.transformer_blocks import blocks_of

SMALL: dict[str, Any] = {"layers": 3, "hidden": 96, "heads": 6, "vocabulary": 101, "sequence": 40, "gated": True}
SMALL |= {"biases": False, "learned_positions": False, "dropout": False, "tied": False}
DENSE = Transformer("dense", feed_forward=120, **SMALL)


def with_experts(**sizes: Any) -> Transformer:
    """A small model with experts."""
    return Transformer("sparse", experts=Experts(**sizes), **SMALL)


LIBRARY = {
    "Mixtral": {"num_local_experts": 5, "intermediate_size": 200},
    "Qwen2Moe": {"num_experts": 7, "num_experts_per_tok": 3, "moe_intermediate_size": 40, "intermediate_size": 200},
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", LIBRARY)
def test_operations_are_those_of_the_library(kind: str, tmp_path: Path) -> None:
    """As many multiplications as torch counts in the forward and the backward of the library's model."""
    transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    sizes = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "num_key_value_heads": 2}
    sizes |= {"vocab_size": 101, "max_position_embeddings": 40, "attn_implementation": "eager"}
    config = getattr(transformers, f"{kind}Config")(**sizes, **LIBRARY[kind], experts_implementation="eager")
    config.save_pretrained(tmp_path)
    found = open_model(tmp_path / "config.json")
    assert isinstance(found, Transformer)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForCausalLM")(config)
    words = torch.randint(0, 101, (2, 40))
    with FlopCounterMode(display=False) as forward:
        loss = model(input_ids=words, labels=words).loss
    with FlopCounterMode(display=False) as backward:
        loss.backward()
    blocks = blocks_of(replace(found, fused_attention=False), 2)
    assert sum(flops_of(block.forward) for block in blocks) == pytest.approx(forward.get_total_flops(), abs=0.5)
    assert sum(flops_of(block.backward) for block in blocks) == pytest.approx(backward.get_total_flops(), abs=0.5)
    every = sum(flops_of(block.forward) + flops_of(block.backward) for block in blocks)
    assert found.model_flops(2, recomputed=False) == pytest.approx(every)
    again = sum(flops_of(block.forward) for block in blocks if block.kind == "block")
    assert found.model_flops(2) == pytest.approx(every + again)


def test_one_expert_of_one_is_the_dense_network_and_a_router() -> None:
    """Products are those of the dense network and the router's one column; bytes are more by the copies of tokens."""
    sparse = with_experts(count=1, per_token=1, feed_forward=120)
    one, other = (blocks_of(model, 4)[1] for model in (sparse, DENSE))
    router = 2 * 4 * 40 * 96
    assert flops_of(one.forward) == flops_of(other.forward) + router
    assert flops_of(one.backward) == flops_of(other.backward) + 2 * router
    assert one.parameters == other.parameters + 96
    assert one.output_bytes == other.output_bytes
    assert one.stash_bytes == other.stash_bytes + 4 * 40 * (2 * 96 * 2 + 4 + 12)
    assert sparse.active_parameters == sparse.parameters


def test_more_experts_are_more_weights_and_no_more_products() -> None:
    """Four times as many experts: their parameters, the router's columns, and every expert's weights are read."""
    few, many = (with_experts(count=count, per_token=2, feed_forward=64) for count in (4, 16))
    one, other = (blocks_of(model, 4)[1] for model in (few, many))
    assert other.parameters - one.parameters == 12 * (3 * 96 * 64 + 96)
    assert flops_of(other.forward) - flops_of(one.forward) == 2 * 4 * 40 * 96 * 12
    assert few.active_parameters == many.active_parameters - 3 * 12 * 96
    moved = [sum(op.moved_bytes for op in block.forward if not isinstance(op, MemoryPass)) for block in (one, other)]
    assert moved[1] - moved[0] == pytest.approx(2 * 12 * (3 * 96 * 64 + 96 + 4 * 40))


@pytest.mark.parametrize("tensor", [2, 6])
def test_a_group_divides_every_expert(tensor: int) -> None:
    """Each rank has its part of all experts and the whole router, and sums as often as for a dense network."""
    model = with_experts(count=4, per_token=2, feed_forward=120, shared_feed_forward=60, shared_gate=True)
    whole, part = blocks_of(model, 4)[1], blocks_of(model, 4, tensor)[1]
    router = 2 * 4 * 40 * 96 * 5  # with the gate's column
    assert flops_of(part.forward) - router == pytest.approx((flops_of(whole.forward) - router) / tensor)
    replicated = 2 * 96 + 96 * 5
    assert part.parameters - replicated == pytest.approx((whole.parameters - replicated) / tensor)
    assert (part.reductions, part.reduced_bytes) == (blocks_of(DENSE, 4, 2)[1].reductions, 4 * 40 * 96 * 2)


@pytest.mark.parametrize(
    ("sizes", "place", "found"),
    [
        ({"count": 0, "per_token": 1, "feed_forward": 8}, "count", "0"),
        ({"count": 4, "per_token": 5, "feed_forward": 8}, "per_token", "5"),
        ({"count": 4, "per_token": 2, "feed_forward": 0}, "feed_forward", "0"),
        ({"count": 4, "per_token": 2, "feed_forward": 8, "shared_gate": True}, "shared_gate", "true"),
    ],
)
def test_impossible_experts(sizes: dict[str, Any], place: str, found: str) -> None:
    """The error names the key."""
    with pytest.raises(InputError) as caught:
        Experts(**sizes)
    assert caught.value.place == place
    assert caught.value.found.startswith(found)


def test_the_place_in_a_file(tmp_path: Path) -> None:
    """The key is named once, below the key of the experts."""
    path = tmp_path / "sizes.yaml"
    sizes = "layers: 2\nhidden: 64\nheads: 4\nvocabulary: 100\nsequence: 16\nbiases: false\n"
    path.write_text(f"{sizes}experts: {{count: 4, per_token: 9, feed_forward: 32}}\n")
    with pytest.raises(InputError) as caught:
        open_model(path)
    assert caught.value.place == f"{path}: experts.per_token"


def test_what_experts_exclude() -> None:
    """Sizes of a dense network, biases, and groups that do not divide an expert are refused."""
    experts = Experts(4, 2, 64, shared_feed_forward=30)
    with pytest.raises(InputError, match=r"^feed_forward: found 8 beside experts; expected 0"):
        Transformer("x", experts=experts, **SMALL, feed_forward=8)
    with pytest.raises(InputError, match=r"^biases: found true beside experts; expected false"):
        Transformer("x", experts=experts, **(SMALL | {"biases": True}))
    for tensor, key in ((4, "heads"), (3, r"experts\.feed_forward")):
        with pytest.raises(InputError, match=f"^tensor: found {tensor}; expected a divisor of {key}"):
            Transformer("x", experts=experts, **SMALL).check_tensor(tensor)


@pytest.mark.slow
def test_a_published_mixture_is_planned() -> None:
    """Mixtral on 32 A100: the state of all experts, 18 bytes a parameter, decides how it is divided."""
    levels = (Level("server", 8, 300e9, 5e-6, shared=False), Level("network", 4, 25e9, 1e-5))
    model, cluster = published("mixtral-8x7b"), Cluster("servers", levels, "a100-80gb")
    found = search_sizes(model, cluster, PlanRequest(256, strategies=("flush",), microbatch_sizes=(1,)))
    mesh = found.best.mesh
    assert mesh.tensor * mesh.depth > 1
    assert max(found.written.peak_memory_bytes.values()) >= 18 * model.parameters / cluster.devices
