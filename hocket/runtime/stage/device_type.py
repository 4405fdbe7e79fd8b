"""Name of this process's device in the catalogue of device types."""

import torch

from hocket.hardware.catalog import type_of_card
from hocket.profiling.measure.measure import type_of


def known_type(device: torch.device) -> str:
    """Return the device type: the catalogue's name if listed, else the driver's name.

    It is "cpu-core" for a CPU.
    """
    return type_of_card(type_of(device))
