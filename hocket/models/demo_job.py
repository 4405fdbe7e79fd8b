"""Job of `hocket demo`: a small GPT on source files of Python's library.

It is written like a user's job file: it defines `make_job()`. The environment variable HOCKET_DEMO_TEXT names another
text.
"""

import os

import torch

from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text
from hocket.profiling.job.job import Job

BATCH_SIZE = 16
SEQ = 128


def make_job() -> Job:
    """Return the job: a byte-level GPT with 4 blocks of width 128.

    Weights and data are equal in every process.
    """
    torch.manual_seed(0)
    model = GPT(GPTSizes(n_layer=4, d_model=128, n_head=4, seq=SEQ, vocab=VOCAB), tied=False)
    data = Text(SEQ, os.environ.get("HOCKET_DEMO_TEXT") or None)
    return Job(model, language_loss, data, _adam, BATCH_SIZE, name="gpt-demo")


def _adam(parameters: object) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=1e-3)  # type: ignore[arg-type]
