"""Naming: what a profile calls the type that a job computes in and the device that it runs on; runs use the same names."""

from typing import TYPE_CHECKING

from hocket.profile.job import Job

if TYPE_CHECKING:
    import torch

CPU = "cpu-core"


def dtype_of(job: Job) -> str:
    """The type that compute works in, such as "float32"."""
    return job.precision or str(next(job.model.parameters()).dtype).removeprefix("torch.")


def type_of(device: "torch.device") -> str:
    """The type of a device: "cpu-core", or the CUDA device's name."""
    if device.type != "cuda":
        return CPU
    import torch

    return torch.cuda.get_device_name(device)
