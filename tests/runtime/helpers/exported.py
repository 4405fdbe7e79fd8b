"""A job with every kind of tensor, and what exports of its checkpoints are compared with."""

import json
from pathlib import Path

import torch
from torch import Tensor, nn

from hocket.runtime.checkpoint.checkpoint import Position, save
from hocket.runtime.kv_exchange import KVExchange

# Tied embeddings, a frozen parameter, an unused parameter, a persistent and a non-persistent buffer.
JOB = """
import torch
from torch import nn
from hocket import Job

torch.manual_seed(0)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up = nn.Linear(8, 16)
        self.down = nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(12, 8)
        self.blocks = nn.Sequential(Block(), Block())
        self.norm = nn.LayerNorm(8)
        self.norm.bias.requires_grad_(False)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.embed.weight
        self.unused = nn.Parameter(torch.randn(3))
        self.register_buffer("scale", torch.full((8,), 0.5))
        self.register_buffer("offset", torch.arange(8) / 8, persistent=False)

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.embed(x)) * self.scale + self.offset)).mean(1)


def make_job():
    data = [(torch.tensor([i % 12, (i * 5) % 12, (i * 7) % 12]), torch.tensor(i % 12)) for i in range(64)]
    return Job(
        Model(), nn.functional.cross_entropy, data, lambda p: torch.optim.Adam(p, lr=0.05), batch_size=8, name="tied"
    )
"""


def write_job(folder: Path, subtasks: bool = False) -> Path:
    """Write the job file; with subtasks, linear layers are larger and divided by rows."""
    path, text = folder / "job.py", JOB
    if subtasks:
        text = text.replace("8, 16", "8, 64").replace("16, 8", "64, 8")
        text = text.replace('name="tied"', 'name="tied", subtask_bytes=600')
    path.write_text(text)
    return path


def tensors_in(folder: Path) -> dict[str, Tensor]:
    """Read the safetensors files of a folder as the format is described, without any library."""
    found = {}
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        assert header.pop("__metadata__")["format"] == "pt"
        for name, entry in header.items():
            begin, end = (start + at for at in entry["data_offsets"])
            kind = {"F32": torch.float32, "F64": torch.float64, "I64": torch.int64}[entry["dtype"]]
            found[name] = torch.frombuffer(bytearray(raw[begin:end]), dtype=kind).view(entry["shape"])
        assert len(raw) == max(start + entry["data_offsets"][1] for entry in header.values())
    return found


def logits(model: nn.Module) -> Tensor:
    """Output of a model without dropout for some samples."""
    with torch.no_grad():
        return model.eval()(torch.arange(36).view(12, 3) % 12)


def written(folder: Path, state: dict[str, Tensor], step: int = 3, name: str = "tied") -> Path:
    """Write a checkpoint of one worker with the tensors of a model."""
    entries = {f"model.{key}": tensor for key, tensor in state.items()} | {"optimizer.0.weight.step": torch.tensor(1.0)}
    return save(folder, Position(step, step * 8, name), entries, KVExchange(None, 0, 1))
