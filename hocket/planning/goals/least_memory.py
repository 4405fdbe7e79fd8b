"""Lower bound of the memory of a job's plans: weights, gradients and optimizer state, without any activation.

Rules of this file: no search and no simulation. The bound is never above the peak memory of a plan. Host memory does
not count, because neither plans of analytic models nor plain data parallelism swap.
"""

from collections import Counter

from hocket.cost.compute import Columns
from hocket.errors import RefusedError
from hocket.hardware.cluster import Cluster
from hocket.planning.mesh.layout import UNITS
from hocket.planning.mesh.model_profiles import considered_meshes
from hocket.planning.search.request import PlanRequest
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.profile import ModelProfile
from hocket.util.units import show_count, show_shortage

_STATE, _NO_GRADIENTS = "weights, gradients and optimizer state", "weights and optimizer state"
_STEP = "Use more devices, or devices with more memory."


class StateTooLarge(RefusedError):
    """A job without any plan on a cluster, whatever its batch, because its state alone does not fit."""


def state_of_model(model: Transformer, request: PlanRequest) -> tuple[float, str]:
    """Least state of an analytic model, on all devices of a plan together.

    A fully sharded plan may free each layer's gradients before it computes the next ones. If the request considers
    such plans, gradients do not count.

    Returns:
        Bytes, and what they are, in words.

    Raises:
        InputError: an unknown strategy.
    """
    numbers = request.precision
    units = UNITS in considered_meshes(request) or "full" in request.shards
    if units and not model.tied:  # fully sharded plans are refused for tied weights
        return (numbers.weight_bytes + numbers.optimizer_bytes) * model.parameters, _NO_GRADIENTS
    each = numbers.weight_bytes + numbers.gradient_bytes + numbers.optimizer_bytes
    return each * model.parameters, _STATE


def room_of(cluster: Cluster) -> float:
    """Memory of all devices together, in bytes."""
    return sum(cluster.capacity_bytes(device) for device in range(cluster.devices))


def check_model_fits(model: Transformer, request: PlanRequest, cluster: Cluster) -> None:
    """Refuse a cluster on which no plan of an analytic model fits, by the bound alone.

    The bound assumes that all devices together hold the state once.

    Raises:
        StateTooLarge: the model's state is larger than the memory of all devices together.
    """
    (size, what), room = state_of_model(model, request), room_of(cluster)
    if size > room:
        needed, available = show_shortage(size, room)
        devices = "one device" if cluster.devices == 1 else f"all {show_count(cluster.devices, 'device')} together"
        raise StateTooLarge("memory", f"{needed} of {what}", f"at most {available}, the memory of {devices}", _STEP)


def check_profile_fits(profile: ModelProfile, cluster: Cluster) -> None:
    """Refuse a cluster on which plain data parallelism of a profiled job cannot fit, by the bound alone.

    Each device holds the whole state.

    Raises:
        StateTooLarge: the job's state is larger than the memory of the smallest device.
    """
    size = sum(x.weights_bytes + x.gradients_bytes + x.optimizer_bytes for x in profile.layers) - _counted_twice(
        profile
    )
    room = min(cluster.capacity_bytes(device) for device in range(cluster.devices))
    if size > room:
        needed, available = show_shortage(size, room)
        expected = f"at most {available}, the memory of the smallest device"
        raise StateTooLarge("memory", f"{needed} of {_STATE}", expected, "Use devices with more memory.")


def _counted_twice(profile: ModelProfile) -> float:
    """State of tied weights that a sum over all layers counts more than once, in bytes."""
    sizes = Columns(profile).parameters
    counts = Counter(name for layer in profile.layers for name in layer.parameters)
    return sum((count - 1) * sum(sizes[name]) for name, count in counts.items())
