"""Name of this process's device in the catalogue of device types."""

import torch

from hocket.hardware.catalog import type_of_card
from hocket.profiling.measure.measure import type_of


def known_type(device: torch.device) -> str:
    """Return the name of a device's type, from the catalogue or else from the driver.

    The name of a CPU is "cpu-core".
    """
    return type_of_card(type_of(device))
