"""GPT of the pipelining comparison: 6 blocks of width 192, batches of 32 sequences of 128 bytes, momentum SGD."""

import torch

from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text
from hocket.profiling.job.job import Job

N_LAYER, D_MODEL, SEQ, BATCH_SIZE = 6, 192, 128, 32


def make_model() -> GPT:
    """Model with the same weights in every process and on both sides of the comparison."""
    torch.manual_seed(0)
    return GPT(GPTSizes(n_layer=N_LAYER, d_model=D_MODEL, n_head=4, seq=SEQ, vocab=VOCAB), tied=False)


def make_optimizer(parameters: object) -> torch.optim.Optimizer:
    """Momentum SGD."""
    return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)  # type: ignore[arg-type]


def make_job() -> Job:
    """Hocket job of the model."""
    return Job(make_model(), language_loss, Text(SEQ), make_optimizer, BATCH_SIZE, name="gpt-bench")
