"""Torch device of a worker: the processor, a GPU, or an error that says what is missing."""

import pytest
import torch

from hocket.errors import InputError
from hocket.training.worker.prepared import device_of


@pytest.mark.parametrize(("kind", "wanted"), [("cpu-core", "cpu"), ("cpu-core", "auto"), ("v100-16gb", "cpu")])
def test_processors_are_used_where_the_plan_or_the_user_says_so(kind: str, wanted: str) -> None:
    """A plan for cores runs on cores, and so does any plan with --device cpu."""
    assert device_of(kind, 3, wanted, 0) == torch.device("cpu")


@pytest.mark.parametrize(("kind", "wanted"), [("v100-16gb", "auto"), ("v100-16gb", "cuda"), ("cpu-core", "cuda")])
@pytest.mark.parametrize("gpus", [0, 1])
def test_missing_gpus_are_an_error(monkeypatch: pytest.MonkeyPatch, kind: str, wanted: str, gpus: int) -> None:
    """The second worker of a machine with fewer than two GPUs gets no device."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(InputError, match=f"device 3: found {gpus} CUDA devices; expected at least 2, for {kind}"):
        device_of(kind, 3, wanted, 1)


def test_a_worker_has_the_gpu_of_its_local_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each worker of a machine has its own GPU."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert device_of("v100-16gb", 3, "auto", 1) == torch.device("cuda", 1)
    assert chosen == [1]
