"""`hocket init`: write a commented job file to begin with."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class JobKind(StrEnum):
    """A kind of job file to begin with."""

    MODULE = "module"
    HUGGINGFACE = "huggingface"
    TEXT = "text"


def init(
    kind: Annotated[
        JobKind,
        typer.Argument(
            help="module: a module of your own; huggingface: a model of transformers; text: a language model on a text file."
        ),
    ] = JobKind.MODULE,
    output: Annotated[Path, typer.Option("-o", "--output", help="Where to write the job file.")] = Path("job.py"),
) -> None:
    """Write a commented job file, which trains as it is, to put your own model and data into.

    Example: hocket init text -o job.py
    """
    from hocket.errors import InputError
    from hocket.printable import say
    from hocket.util.files import place_to_write, write_atomic

    place_to_write(output)
    if output.exists():
        step = "Name another one with -o. Nothing was changed."
        raise InputError(str(output), "a file that exists", "the name of a new file", step)
    write_atomic(output, _FILES[kind])
    say(f"wrote {output}; next: edit it, then hocket train {output} -n 2")


_HEAD = '''"""Job file of Hocket. Train it: hocket train job.py -n 2

Every worker runs this file, so it must create the same model and the same data each time.
"""

'''

_TAIL = """    # A function from parameters to an optimizer, with the learning rate of your single-process training.
    optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    # Samples of one optimizer step, over all workers together.
    batch_size={batch_size},
    # precision="bfloat16", clip_grad_norm=1.0 and lr_schedule=... are further settings.
)
"""

_MODULE = """import torch
from torch import Tensor, nn

from hocket import Job


class Net(nn.Module):
    \"\"\"Your model: any module. Hocket runs it as it is, and divides it into layers by itself.\"\"\"

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class Samples:
    \"\"\"Your data: len(data) and data[i], one sample without a batch dimension, such as (input, target).\"\"\"

    def __len__(self) -> int:
        return 1024

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        digit = i % 10
        return torch.linspace(0.0, digit / 10, 64), digit


torch.manual_seed(0)  # the same first weights in every worker

job = Job(
    model=Net(),
    # Called as loss(model(input), target); it returns the mean over the samples.
    loss=nn.functional.cross_entropy,
    data=Samples(),
"""

_HUGGINGFACE = """import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, GPT2Config

from hocket import Job
from hocket.models.text import VOCAB, Text

SEQUENCE = 64

torch.manual_seed(0)  # the same first weights in every worker

# A small model with random weights. A published one, with its weights:
#     model = AutoModelForCausalLM.from_pretrained("gpt2")
config = GPT2Config(n_layer=2, n_embd=64, n_head=4, n_positions=SEQUENCE, vocab_size=VOCAB)
model = AutoModelForCausalLM.from_config(config)


class Samples:
    \"\"\"Your data: the arguments of the model's forward, as tensors of one shape; here bytes of Python's source files.

    With a tokenizer: data[i] returns {"input_ids": ids, "labels": ids}, where ids are padded or cut to one length.
    \"\"\"

    def __init__(self) -> None:
        self.text = Text(SEQUENCE)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        tokens, _ = self.text[i]
        return {"input_ids": tokens, "labels": tokens}


job = Job(
    model=model,
    # The model computes its loss itself, from `labels`.
    loss=None,
    data=Samples(),
"""

_TEXT = """import torch

from hocket import Job
from hocket.models.gpt import GPT, GPTSizes, language_loss
from hocket.models.text import VOCAB, Text

# Your text file, such as "book.txt"; None for the source files of Python itself. Its bytes are the tokens.
PATH = None
SEQUENCE = 64

torch.manual_seed(0)  # the same first weights in every worker

job = Job(
    # A GPT of any size; or your own module that returns logits of shape (samples, sequence, vocabulary).
    model=GPT(GPTSizes(n_layer=2, d_model=64, n_head=4, seq=SEQUENCE, vocab=VOCAB), tied=False),
    loss=language_loss,
    # Sample i: SEQUENCE tokens, and the next token of each as its target.
    data=Text(SEQUENCE, PATH),
"""

_FILES = {
    JobKind.MODULE: _HEAD + _MODULE + _TAIL.format(batch_size=32),
    JobKind.HUGGINGFACE: _HEAD + _HUGGINGFACE + _TAIL.format(batch_size=8),
    JobKind.TEXT: _HEAD + _TEXT + _TAIL.format(batch_size=8),
}
