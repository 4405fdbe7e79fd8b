"""Small transformers of several libraries, with arguments of one call of each.

Weights are random.
"""

from typing import Any

import pytest
import torch
from torch import nn

from hocket.models.gpt import GPT, GPTSizes

NAMES = ("gpt", "gpt2 eager", "gpt2 sdpa", "bert eager", "bert sdpa", "llama eager", "llama sdpa")
VOCAB, SEQ, SAMPLES = 33, 12, 2


def model_of(name: str, dropout: float = 0.0, heads: int = 4, layers: int = 2) -> tuple[nn.Module, Any, Any]:
    """A model in float64, and its arguments."""
    torch.manual_seed(0)
    tokens = torch.randint(0, VOCAB, (SAMPLES, SEQ))
    if name == "gpt":
        gpt = GPT(GPTSizes(n_layer=layers, d_model=4 * heads, n_head=heads, seq=SEQ, vocab=VOCAB), dropout)
        return gpt.double(), (tokens,), {}
    transformers = pytest.importorskip("transformers", reason="the extra `hf` is not installed")
    transformers.logging.set_verbosity_error()
    kind, attention = name.split()
    if kind == "gpt2":
        config = transformers.GPT2Config(
            n_layer=layers, n_embd=4 * heads, n_head=heads, n_positions=SEQ, vocab_size=VOCAB,
            attn_implementation=attention, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout, bos_token_id=0,
            eos_token_id=0, use_cache=False,
        )  # fmt: skip
        return transformers.GPT2LMHeadModel(config).double(), (), {"input_ids": tokens}
    if kind == "bert":
        config = transformers.BertConfig(
            hidden_size=4 * heads, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=8 * heads,
            vocab_size=VOCAB, max_position_embeddings=SEQ, attn_implementation=attention, hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )  # fmt: skip
        mask = (torch.arange(SEQ) < torch.tensor([[9], [12]])).long()
        return transformers.BertForMaskedLM(config).double(), (), {"input_ids": tokens, "attention_mask": mask}
    config = transformers.LlamaConfig(
        hidden_size=8 * heads, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=2,
        intermediate_size=16 * heads, vocab_size=VOCAB, max_position_embeddings=SEQ, attn_implementation=attention,
        attention_dropout=dropout, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).double(), (), {"input_ids": tokens}


def logits_of(output: Any) -> torch.Tensor:
    """Logits of a model for each token."""
    found: torch.Tensor = output if isinstance(output, torch.Tensor) else output.logits
    return found
