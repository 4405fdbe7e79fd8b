"""Job file: GPT pretraining with the settings of nanoGPT, on the source text of Python's own library.

hocket train examples/recipes/nanogpt.py -n 2 --steps 200 --checkpoint saved --every 50
hocket train examples/recipes/nanogpt.py -n 2 --steps 400 --checkpoint saved --every 50 --resume
hocket export saved -o gpt --format torch --job examples/recipes/nanogpt.py

It has AdamW with two parameter groups, warm-up and cosine decay, gradient clipping, an evaluation on held-out text, and
the best checkpoint. The sizes are for a laptop. For nanoGPT's GPT-2 (124M), write SIZES = GPTSizes(n_layer=12,
d_model=768, n_head=12, seq=1024, vocab=50304), BATCH = 480, STEPS = 600_000, WARM_UP = 2000 and RATE = 6e-4, let data be
your tokens, and set precision="bfloat16".
"""

import torch
from torch.utils.data import Subset

from hocket import Evaluation, Job
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text

SIZES = GPTSizes(n_layer=2, d_model=64, n_head=4, seq=64, vocab=VOCAB)
BATCH, STEPS, WARM_UP, RATE = 12, 400, 20, 1e-3
HELD_OUT = 96  # samples at the end of the text


def optimizer(named):
    """Decay matrices and embeddings; do not decay biases and layer norms."""
    groups: dict[bool, list] = {True: [], False: []}
    for name, parameter in named:
        groups[parameter.ndim > 1].append((name, parameter))
    return torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}],
        lr=RATE,
        betas=(0.9, 0.95),
    )


torch.manual_seed(1337)  # every worker runs this file, so all have the same weights
text = Text(seq=SIZES.seq)
trained = len(text) - HELD_OUT

job = Job(
    model=GPT(SIZES),
    loss=language_loss,
    data=Subset(text, range(trained)),
    optimizer=optimizer,
    batch_size=BATCH,
    clip_grad_norm=1.0,
    lr_schedule={"name": "cosine_with_min_lr", "steps": STEPS, "warmup_steps": WARM_UP, "min_lr": RATE / 10},
    evaluate=Evaluation(Subset(text, range(trained, len(text))), every=50, keep_best=True),
    name="nanogpt",
)
