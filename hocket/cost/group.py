"""What a tensor-parallel group takes: its members' seconds with what they take to reduce among each other.

A member waits for each of these reductions, so that they are part of its forward and backward (dissertation section 4.2.3).
"""

from dataclasses import replace

from hocket.hardware.groups import Grouped
from hocket.profile.model import Elsewhere, Layer, ModelProfile


def of_group(profile: ModelProfile, group: Grouped) -> ModelProfile:
    """The profile with a group's reductions in its seconds: what planners and the simulator take for one device's.

    Arguments:
        profile: of one member. group: of as many members as the profile's `tensor` says.
    """
    if profile.tensor == 1:
        return profile
    return replace(profile, layers=tuple(_reducing(layer, group) for layer in profile.layers))


def _reducing(layer: Layer, group: Grouped) -> Layer:
    if not layer.reduced_bytes:
        return layer
    each = [group.all_reduce_s(size) for size in layer.reduced_bytes]
    forward, backward = layer.reductions

    def reducing(one: Layer | Elsewhere) -> dict[str, tuple[float, ...]]:
        return {
            "forward_s": tuple(s + forward * more for s, more in zip(one.forward_s, each, strict=True)),
            "backward_s": tuple(s + backward * more for s, more in zip(one.backward_s, each, strict=True)),
        }

    elsewhere = tuple(replace(one, **reducing(one)) for one in layer.elsewhere)  # type: ignore[arg-type]
    return replace(layer, **reducing(layer), elsewhere=elsewhere)  # type: ignore[arg-type]
