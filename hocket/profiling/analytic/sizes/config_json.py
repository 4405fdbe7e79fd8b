"""Reader of a Hugging Face `config.json` (GPT-2, BERT and Llama families, and Mixtral and Qwen2-MoE).

Rules of this file: the transformers library is not used. An unknown option that would change the number of parameters
or the operators is refused by name. The model is the one that is trained, with the vocabulary's output layer
(`...LMHeadModel`, `BertForMaskedLM`, `...ForCausalLM`). Attention is one kernel (sdpa, the library's default) unless
the file says eager. Passes are not fused.
"""

from collections.abc import Callable
from typing import Any

from hocket.errors import InputError
from hocket.profiling.analytic.experts import Experts
from hocket.profiling.analytic.transformer import Transformer

_Config = dict[str, Any]


def transformer_of(config: _Config, place: str, name: str = "") -> Transformer:
    """Convert the content of a `config.json` to the sizes of a model.

    Arguments:
        place: place of the file, for errors.
        name: name of the model; by default its `model_type`.

    Raises:
        InputError: the type of model is unknown, a size is missing or wrong, or an option is not supported.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        found = "nothing" if kind is None else repr(kind)[:60]
        known = ", ".join(_KINDS)
        if experts := _experts(config):
            raise InputError(
                f"{place}: model_type",
                f"{found}, a mixture of experts ({experts})",
                f"one of {known}, because the analytic model does not describe these experts",
                _PROFILE,
            )
        step = f"If its blocks are like those of a known type, describe its sizes in a YAML file (docs/how-to/plan-without-devices.md). {_PROFILE}"
        raise InputError(f"{place}: model_type", found, f"one of {known}", step)
    if kind not in _OF_EXPERTS and (experts := _experts(config)):
        raise InputError(place, experts, f"a model of type {kind} without experts", _PROFILE)
    read = _ConfigReader(config, place)
    if config.get("add_cross_attention"):
        raise InputError(f"{place}: add_cross_attention", "true", "false: the analytic model has no cross-attention")
    fused = config.get("attn_implementation", config.get("_attn_implementation", "sdpa")) != "eager"
    try:
        return Transformer(name=name or kind, fused_attention=fused, fused_passes=False, **_KINDS[kind](read))
    except InputError as error:
        raise (
            error
            if error.place.startswith(place)
            else InputError(f"{place}: {error.place}", error.found, error.expected, error.next_step)
        ) from None


_PROFILE = (
    "Any model can be profiled as a module: write a job file that creates it, then run `hocket profile job.py --device-type TYPE`, which needs "
    "no device."
)
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


def _experts(config: _Config) -> str:
    """Describe a mixture of experts, such as "num_local_experts: 8"; "" without one."""
    inner = [one for one in (config.get("ffn_config"), config.get("text_config")) if isinstance(one, dict)]
    for part in (config, *inner):
        for key in _EXPERTS:
            count = part.get(key)
            if isinstance(count, int) and not isinstance(count, bool) and count > 1:
                return f"{key}: {count}"
    return ""


class _ConfigReader:
    """Typed access to the values of one `config.json`; errors name the key."""

    def __init__(self, config: _Config, place: str) -> None:
        self._config, self._place = config, place

    def whole(self, key: str, default: int | None = None) -> int:
        """Read a whole number; it is required if there is no default."""
        value = self._config.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise InputError(
                f"{self._place}: {key}", "nothing" if value is None else repr(value)[:60], "a whole number"
            )
        return value

    def truth(self, key: str, default: bool) -> bool:
        """Read a key that must be true or false; a missing key has the default."""
        value = self._config.get(key, default)
        if not isinstance(value, bool):
            raise InputError(f"{self._place}: {key}", repr(value)[:60], "true or false")
        return value

    def drops(self, *keys: str, default: float) -> bool:
        """True if any of these dropout probabilities is above zero."""
        found = False
        for key in keys:
            value = self._config.get(key, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
                raise InputError(f"{self._place}: {key}", repr(value)[:60], "a number from 0 to below 1")
            found |= value > 0
        return found

    def must_be(self, key: str, wanted: Any) -> None:
        """Refuse a value other than the supported one. A missing value is supported."""
        value = self._config.get(key)
        if value is not None and value != wanted:
            raise InputError(
                f"{self._place}: {key}",
                repr(value)[:60],
                f"{wanted!r}, or no value: the analytic model supports nothing else",
            )


def _gpt2(read: _ConfigReader) -> dict[str, Any]:
    positions = read.whole("n_positions", 1024)
    return {
        "layers": read.whole("n_layer"),
        "hidden": read.whole("n_embd"),
        "heads": read.whole("n_head"),
        "vocabulary": read.whole("vocab_size", 50257),
        "sequence": positions,
        "positions": positions,
        "feed_forward": read.whole("n_inner", 0),
        "dropout": read.drops("resid_pdrop", "embd_pdrop", "attn_pdrop", default=0.1),
        "tied": read.truth("tie_word_embeddings", True),
    }


def _bert(read: _ConfigReader) -> dict[str, Any]:
    read.must_be("position_embedding_type", "absolute")
    positions = read.whole("max_position_embeddings", 512)
    return {
        "layers": read.whole("num_hidden_layers"),
        "hidden": read.whole("hidden_size"),
        "heads": read.whole("num_attention_heads"),
        "vocabulary": read.whole("vocab_size", 30522),
        "sequence": positions,
        "positions": positions,
        "feed_forward": read.whole("intermediate_size"),
        "dropout": read.drops("hidden_dropout_prob", "attention_probs_dropout_prob", default=0.1),
        "tied": read.truth("tie_word_embeddings", True),
        "causal": read.truth("is_decoder", False),
        "token_types": read.whole("type_vocab_size", 2),
        "embedding_norm": True,
        "last_norm": False,
        "head_transform": True,
    }


def _llama(read: _ConfigReader) -> dict[str, Any]:
    for key in ("attention_bias", "mlp_bias"):
        read.must_be(key, False)
    hidden, heads = read.whole("hidden_size"), read.whole("num_attention_heads")
    if heads:
        read.must_be("head_dim", hidden // heads)
    return {
        "layers": read.whole("num_hidden_layers"),
        "hidden": hidden,
        "heads": heads,
        "vocabulary": read.whole("vocab_size", 32000),
        "sequence": read.whole("max_position_embeddings", 2048),
        "kv_heads": read.whole("num_key_value_heads", heads),
        "feed_forward": read.whole("intermediate_size"),
        "gated": True,
        "biases": False,
        "learned_positions": False,
        "dropout": read.drops("attention_dropout", default=0.0),
        "tied": read.truth("tie_word_embeddings", False),
    }


def _mistral(read: _ConfigReader) -> dict[str, Any]:
    found = _llama(read)
    window = read.whole("sliding_window", 0)
    # Attention over samples longer than the window would be partial, which is not modelled.
    return {**found, "sequence": min(found["sequence"], window or found["sequence"])}


def _qwen2(read: _ConfigReader) -> dict[str, Any]:
    read.must_be("use_sliding_window", False)
    return {**_llama(read), "query_biases": True}


def _mixtral(read: _ConfigReader) -> dict[str, Any]:
    found = _mistral(read)
    experts = Experts(read.whole("num_local_experts", 8), read.whole("num_experts_per_tok", 2), found["feed_forward"])
    return {**found, "feed_forward": 0, "experts": experts}


def _qwen2_moe(read: _ConfigReader) -> dict[str, Any]:
    read.must_be("decoder_sparse_step", 1)
    read.must_be("mlp_only_layers", [])
    experts = Experts(
        count=read.whole("num_experts", 60),
        per_token=read.whole("num_experts_per_tok", 4),
        feed_forward=read.whole("moe_intermediate_size", 1408),
        shared_feed_forward=read.whole("shared_expert_intermediate_size", 5632),
        shared_gate=True,
    )
    biases = read.truth("qkv_bias", True)
    return {**_qwen2(read), "query_biases": biases, "feed_forward": 0, "experts": experts}


_OF_EXPERTS: dict[str, Callable[[_ConfigReader], dict[str, Any]]] = {"mixtral": _mixtral, "qwen2_moe": _qwen2_moe}
_KINDS: dict[str, Callable[[_ConfigReader], dict[str, Any]]] = {
    "bert": _bert,
    "gpt2": _gpt2,
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
} | _OF_EXPERTS
