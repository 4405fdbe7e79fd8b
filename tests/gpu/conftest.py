"""The device of the tests marked `gpu`: a card, or with `--card cpu` a processor, on which they show that they run."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist


@pytest.fixture
def card(request: pytest.FixtureRequest) -> torch.device:
    """The first card, or a CPU."""
    return torch.device("cpu") if request.config.getoption("--card") == "cpu" else torch.device("cuda", 0)


@pytest.fixture
def process_group(card: torch.device, tmp_path: Path) -> Iterator[None]:
    """A process group of this process: NCCL on a card, gloo on a CPU."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    backend = "nccl" if card.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()
