"""Job file: unmodified Hugging Face GPT-2 with random weights from a config (needs `pip install hocket[hf]`).

A sample is a dictionary. Hocket passes the entries that the model's forward accepts; the model's output contains the
loss.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel

from hocket import Job
from hocket.models.text import VOCAB, Text


class Samples:
    """Real text in GPT-2's format: the model shifts the labels itself."""

    def __init__(self, seq: int) -> None:
        self.text = Text(seq=seq)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        tokens, _ = self.text[i]
        return {"input_ids": tokens, "labels": tokens}


torch.manual_seed(0)

job = Job(
    model=GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, n_positions=128, vocab_size=VOCAB)),
    loss=None,
    data=Samples(seq=128),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    batch_size=16,
    name="hf-gpt2",
)
