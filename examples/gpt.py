"""Job file: a GPT trained on the source text of Python's own library.

hocket links -n 2 -o cluster.yaml
hocket profile examples/gpt.py -o profile.json -b 2 -b 4
hocket plan profile.json cluster.yaml --batch 16 -o plan.yaml
hocket train examples/gpt.py plan.yaml --steps 50
"""

import torch

from hocket import Job
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text

torch.manual_seed(0)  # every worker runs this file, so all have the same weights

job = Job(
    model=GPT(GPTSizes(n_layer=4, d_model=128, n_head=4, seq=128, vocab=VOCAB)),
    loss=language_loss,
    data=Text(seq=128),
    optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3),
    batch_size=16,
    name="gpt",
)
