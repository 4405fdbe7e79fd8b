"""Job file of Hocket. Data, model and settings are in tiny.py; docs/explanation/side-by-side.md has the commands.

PRECISION=bfloat16 or PRECISION=float16 in the environment sets the precision.
"""

import os

import torch
from tiny import BATCH, EVERY, HELD_OUT, NORM, RATE, TRAINED, factor, make_model

from hocket import Evaluation, Job

job = Job(
    model=make_model(),
    loss=torch.nn.functional.cross_entropy,
    data=TRAINED,
    shuffle=False,
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=RATE),
    batch_size=BATCH,
    precision=os.environ.get("PRECISION"),
    clip_grad_norm=NORM,
    lr_schedule=factor,
    evaluate=Evaluation(HELD_OUT, every=EVERY, keep_best=True),
    name="tiny",
)
