"""Type of this process's device in the catalogue, and its peak rate.

With the peak rates, a run shows its model FLOPs utilization (MFU): the model's operations in a step
(`Captured.step_flops`), relative to what the devices compute at their peak rates. Recomputation is not counted, so that
a plan does not gain by computing twice. (The dissertation's rates, section 4.5, count it as a second forward.)
"""

import torch

from hocket.hardware.catalog import device_type, names, type_of_card
from hocket.hardware.cluster import Cluster
from hocket.profiling.measure.measure import type_of
from hocket.runtime.kv_exchange import KVExchange


def known_type(device: torch.device) -> str:
    """Return the name of a device's type, from the catalogue or else from the driver.

    The name of a CPU is "cpu-core".
    """
    return type_of_card(type_of(device))


def peak_flops_per_s(cluster: Cluster, number: int, device: torch.device, dtype: str) -> float | None:
    """Return the peak rate of a worker's device; None if it is unknown.

    A card is looked up in the catalogue, or else in the cluster. A CPU has a known rate only if the cluster file
    describes its type, because the catalogue's `cpu-core` is a stand-in.

    Arguments:
        number: the worker's device in the cluster.
        dtype: type that the job computes in, such as "bfloat16".
    """
    kind = cluster.type_of(number)
    if device.type == "cuda":
        card = known_type(device)
        kind = device_type(card) if card != kind.name and card in names() else kind
        if dtype == "float32" and torch.get_float32_matmul_precision() != "highest":
            dtype = "tfloat32"
    elif kind not in cluster.types:
        return None
    return kind.flops_per_s.get(dtype)


def peak_step_s(flops: float, own_flops_per_s: float | None, board: KVExchange) -> float | None:
    """Compute the seconds of a step at the peak rates of all devices; a collective call of all workers.

    Arguments:
        flops: the model's operations in a step.
        own_flops_per_s: peak rate of this worker's device.

    Returns:
        The same on every worker; None if a rate is unknown.
    """
    rates = board.share(own_flops_per_s)
    return None if None in rates or not flops else flops / sum(rates)
