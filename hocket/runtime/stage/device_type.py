"""The catalogue's name of the device that this process measures or trains on."""

import torch

from hocket.hardware.catalog import type_of_card
from hocket.profiling.measure.measure import type_of


def known_type(device: torch.device) -> str:
    """Device type: the catalogue's name of a listed card, else the driver's name.

    "cpu-core" for a CPU.
    """
    return type_of_card(type_of(device))
