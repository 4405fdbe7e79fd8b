"""Analytic models: files, published names, and the parameters of the models that they describe."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.errors import InputError
from hocket.profiling.analytic.sizes import names, open_model, published
from hocket.profiling.analytic.sizes.config_json import transformer_of
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from tests.profiling.analytic.test_transformer import TABLE_4_1

OWN = "layers: 2\nhidden: 64\nheads: 4\nvocabulary: 100\nsequence: 16\n"
GPT2 = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 32, "vocab_size": 100}
LLAMA = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 96}
LLAMA |= {"vocab_size": 100, "max_position_embeddings": 32}


def opened(folder: Path, content: str | dict[str, Any], name: str = "") -> Transformer | ModelProfile:
    """Return the model in a file of this content."""
    path = folder / (name or ("tiny.json" if isinstance(content, dict) else "tiny.yaml"))
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return open_model(path)


def test_our_own_file(tmp_path: Path) -> None:
    """A YAML file has the fields of `Transformer`; its name is the default name."""
    assert opened(tmp_path, OWN) == Transformer("tiny", 2, 64, 4, 100, 16)
    assert opened(tmp_path, OWN + "name: other\ngated: true\n") == Transformer("other", 2, 64, 4, 100, 16, gated=True)


def test_a_profile_is_still_a_profile(tmp_path: Path) -> None:
    """A saved profile is opened unchanged."""
    profile = chain(3)
    profile.save(tmp_path / "profile.json")
    assert open_model(tmp_path / "profile.json") == profile


@pytest.mark.parametrize(
    ("text", "place", "found"),
    [
        (OWN + "hiden: 3\n", "tiny.yaml: hiden", "unknown key 'hiden'"),
        (OWN.replace("heads: 4\n", ""), "tiny.yaml: heads", "nothing"),
        (OWN.replace("64", "many"), "tiny.yaml: hidden", "'many'"),
        (OWN.replace("heads: 4", "heads: 7"), "tiny.yaml: heads", "7 heads for a hidden size of 64"),
        (OWN.replace("layers: 2", "layers: 1000000000"), "tiny.yaml: layers", "1000000000"),
        (OWN + "positions: 8\n", "tiny.yaml: sequence", "16"),
        (OWN + "gated: [\n", "tiny.yaml, line 7", "'the end of the file'"),
        ("levels: []\n", "tiny.yaml", "what seems to be a cluster"),
        ("", "tiny.yaml", "an empty file"),
    ],
)
def test_a_wrong_file_of_ours(tmp_path: Path, text: str, place: str, found: str) -> None:
    """The error names the key and its value."""
    with pytest.raises(InputError) as caught:
        opened(tmp_path, text)
    assert caught.value.place == str(tmp_path / place)
    assert caught.value.found.startswith(found)


@pytest.mark.parametrize(
    ("change", "place", "found", "expected"),
    [
        ({"model_type": "t5"}, "model_type", "'t5'", "one of bert, gpt2, llama, mistral, qwen2"),
        ({"model_type": None, "architectures": ["X"]}, "model_type", "nothing", "one of bert"),
        ({"n_layer": None}, "n_layer", "nothing", "a whole number"),
        ({"n_embd": "64"}, "n_embd", "'64'", "a whole number"),
        ({"n_head": 5}, "heads", "5 heads for a hidden size of 64", "a divisor"),
        ({"n_layer": -2}, "n_layer", "-2", "a whole number"),
        ({"resid_pdrop": 2}, "resid_pdrop", "2", "a number from 0 to below 1"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings", "'no'", "true or false"),
        ({"add_cross_attention": True}, "add_cross_attention", "true", "false"),
        ({"model_type": "llama", **LLAMA, "attention_bias": True}, "attention_bias", "True", "False, or no value"),
        ({"model_type": "llama", **LLAMA, "head_dim": 32}, "head_dim", "32", "16, or no value"),
        ({"model_type": "qwen2", **LLAMA, "use_sliding_window": True}, "use_sliding_window", "True", "False"),
    ],
)
def test_a_wrong_config(tmp_path: Path, change: dict[str, Any], place: str, found: str, expected: str) -> None:
    """Unknown models, and options that change their sizes, are refused by name."""
    with pytest.raises(InputError) as caught:
        opened(tmp_path, {**GPT2, **change})
    error = caught.value
    assert error.place == f"{tmp_path / 'tiny.json'}: {place}"
    assert error.found.startswith(found)
    assert error.expected.startswith(expected)


def test_a_config_in_its_folder(tmp_path: Path) -> None:
    """A model is named after the folder of its config.json."""
    (tmp_path / "my-gpt").mkdir()
    found = opened(tmp_path, GPT2, "my-gpt/config.json")
    assert isinstance(found, Transformer)
    assert (found.name, found.layers, found.positions, found.fused_attention) == ("my-gpt", 2, 32, True)
    eager = opened(tmp_path, {**GPT2, "attn_implementation": "eager"})
    assert isinstance(eager, Transformer)
    assert not eager.fused_attention


def test_a_window_is_the_longest_sample() -> None:
    """Mistral's window limits the length of a sample; Llama has no window."""

    assert transformer_of({"model_type": "mistral", **LLAMA, "sliding_window": 8}, "x").sequence == 8
    assert transformer_of({"model_type": "llama", **LLAMA}, "x").sequence == 32


# Billions of parameters, as published or as weights' files have them.
PUBLISHED = {
    "gpt3-175b": 174.6,
    "llama-2-7b": 6.738,
    "llama-2-70b": 68.977,
    "llama-3.1-405b": 405.853,
    "bert-large": 0.335,
    "gpt2-xl": 1.558,
    "mixtral-8x7b": 46.703,
    "qwen1.5-moe-a2.7b": 14.316,
}


@pytest.mark.parametrize("name", names())
def test_published_models(name: str) -> None:
    """Published models have the published number of parameters, and a source."""
    model = published(name)
    assert model.name == name
    assert len(model.source) > 10
    rows = {(layers, hidden, heads): billions for layers, hidden, heads, billions in TABLE_4_1}
    billions = PUBLISHED.get(name) or rows[model.layers, model.hidden, model.heads]
    assert round(model.parameters / 1e9, len(str(billions).split(".")[1])) == billions


def test_a_name_that_is_none() -> None:
    """An unknown name is refused with the nearest one; a path is not taken for a name."""
    with pytest.raises(InputError, match=r"^model: found 'gpt3-175'; .*gpt3-175b") as caught:
        open_model("gpt3-175")
    assert "gpt3-175b" in caught.value.next_step
    with pytest.raises(InputError, match=r"^none/gpt.yaml: found no such file"):
        open_model("none/gpt.yaml")


@pytest.mark.parametrize(
    ("config", "found"),
    [
        (
            {"model_type": "phimoe", "num_local_experts": 16},
            r"'phimoe', a mixture of experts \(num_local_experts: 16\)",
        ),
        ({"model_type": "deepseek_v3", "n_routed_experts": 256}, r"'deepseek_v3', a mixture of experts"),
        ({"model_type": "qwen3_moe", "num_experts": 128}, r"'qwen3_moe', a mixture of experts"),
        ({"model_type": "dbrx", "ffn_config": {"moe_num_experts": 16}}, r"'dbrx', a mixture of experts"),
        (
            {"model_type": "llama", **LLAMA, "num_local_experts": 4},
            r"num_local_experts: 4; expected a model of type llama without experts",
        ),
    ],
)
def test_mixtures_of_experts_are_refused_as_such(config: dict[str, Any], found: str) -> None:
    """A mixture of experts is refused without the suggestion of another model.

    The error says that the module can be profiled.
    """
    with pytest.raises(InputError, match=found) as caught:
        transformer_of(config, "config.json")
    assert "Did you mean" not in str(caught.value)
    assert "hocket profile job.py --device-type" in caught.value.next_step


@pytest.mark.parametrize("kind", ["qwen3", "gpt_neox", "phi3", "mistral3"])
def test_other_families_are_no_misspelling(kind: str) -> None:
    """An unknown type is not taken for a misspelling of a known one."""
    with pytest.raises(InputError, match="one of bert, gpt2, llama, mistral, qwen2") as caught:
        transformer_of({"model_type": kind}, "config.json")
    assert "Did you mean" not in str(caught.value)
    assert "docs/how-to/plan-without-devices.md" in caught.value.next_step


def of_library(kind: str, **changes: Any) -> Any:
    """Return a configuration of the transformers library."""
    transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    return getattr(transformers, f"{kind}Config")(**changes)


SMALL = {"hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 200}
SMALL |= {"vocab_size": 101, "max_position_embeddings": 40}
MODELS = [
    ("GPT2", "GPT2LMHeadModel", {}),
    ("GPT2", "GPT2LMHeadModel", {"n_embd": 96, "n_layer": 3, "n_inner": 100, "tie_word_embeddings": False}),
    ("Llama", "LlamaForCausalLM", {}),
    ("Llama", "LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2, "tie_word_embeddings": True}),
    ("Mistral", "MistralForCausalLM", {**SMALL, "num_key_value_heads": 3, "head_dim": 16}),
    ("Qwen2", "Qwen2ForCausalLM", {**SMALL, "num_key_value_heads": 2}),
    ("Mixtral", "MixtralForCausalLM", {**SMALL, "num_key_value_heads": 2, "num_local_experts": 5}),
    ("Qwen2Moe", "Qwen2MoeForCausalLM", {}),
    (
        "Qwen2Moe",
        "Qwen2MoeForCausalLM",
        {**SMALL, "num_key_value_heads": 3, "num_experts": 7, "moe_intermediate_size": 40, "qkv_bias": False},
    ),
    ("Bert", "BertForMaskedLM", {}),
    ("Bert", "BertForMaskedLM", {**SMALL, "type_vocab_size": 5}),
]


@pytest.mark.parametrize(
    ("kind", "model", "changes"), MODELS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_parameters_of_the_real_model(tmp_path: Path, kind: str, model: str, changes: dict[str, Any]) -> None:
    """The library's model, built without memory, has exactly as many parameters."""
    config = of_library(kind, **changes)
    import torch
    import transformers

    config.save_pretrained(tmp_path)
    found = open_model(tmp_path / "config.json")
    assert isinstance(found, Transformer)
    with torch.device("meta"):
        built = getattr(transformers, model)(config)
    built.tie_weights()
    assert found.parameters == sum(p.numel() for p in built.parameters())


@pytest.mark.parametrize(
    ("name", "kind", "changes"),
    [
        ("gpt2-xl", "GPT2", {"n_embd": 1600, "n_layer": 48, "n_head": 25}),
        (
            "bert-large",
            "Bert",
            {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
        ),
        ("llama-2-7b", "Llama", {"max_position_embeddings": 4096, "num_key_value_heads": 32}),
        ("mixtral-8x7b", "Mixtral", {"max_position_embeddings": 4096, "tie_word_embeddings": False}),
        ("qwen1.5-moe-a2.7b", "Qwen2Moe", {"max_position_embeddings": 8192, "tie_word_embeddings": False}),
    ],
)
def test_published_as_the_library_has_them(tmp_path: Path, name: str, kind: str, changes: dict[str, Any]) -> None:
    """A published model equals the one from the library's config.json."""
    of_library(kind, **changes).save_pretrained(tmp_path)
    found = open_model(tmp_path / "config.json")
    assert isinstance(found, Transformer)
    ours = published(name)
    given, expected = (
        replace(one, kv_heads=one.key_heads, feed_forward=0 if one.experts else one.inner) for one in (found, ours)
    )
    assert replace(given, name=name, source=ours.source) == expected
