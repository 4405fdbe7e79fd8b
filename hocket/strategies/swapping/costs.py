"""Cost model of Harmony's tuner: profiled layers, the server, and bytes of packs.

A pack is a run of layers that one task runs together. A plan has packs of the forward and packs of the backward. A
task runs the forward (or backward) of one pack for all microbatches.

Source: Harmony (HotOS 2021), section 3. This module has data and prefix sums, in seconds and bytes. It does not know
the order of tasks or the search.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hocket.errors import InputError

Array = NDArray[np.float64]
GIB = 1024.0**3


class Pack(NamedTuple):
    """Layers that one task runs together: `first` to `end` - 1."""

    first: int
    end: int


@dataclass(frozen=True)
class Server:
    """Devices of one host, and the bandwidth of its links.

    Attributes:
        devices: number of devices.
        memory_bytes: memory of a device.
        swap_bytes_per_s: bandwidth from host to devices, and the same back; shared by all devices in use.
        peer_bytes_per_s: bandwidth from device to device.
        host_bytes_per_s: bandwidth at which one worker hands activations to another inside the host, shared by all
            devices in use. The bytes count twice because they are written and read.
        freeing_s: seconds to free memory at the end of a task.
    """

    devices: int = 4
    memory_bytes: float = 10 * GIB
    swap_bytes_per_s: float = 11.5 * GIB
    peer_bytes_per_s: float = 8.2 * GIB
    host_bytes_per_s: float = 16 * GIB
    freeing_s: float = 0.04


class DirectionCosts(NamedTuple):
    """Profile of one direction, forward or backward.

    Attributes:
        sizes: profiled microbatch sizes, ascending.
        seconds: seconds of each layer; shape (sizes, layers).
        bytes: memory that a task of each layer alone needs; shape (sizes, layers).
    """

    sizes: Array
    seconds: Array
    bytes: Array

    def at(self, size: int) -> tuple[Array, Array]:
        """Seconds and bytes of each layer at a microbatch size.

        Both are interpolated between profiled sizes. Bytes are rounded down.
        """
        place = int(np.clip(np.searchsorted(self.sizes, size, side="right") - 1, 0, max(len(self.sizes) - 2, 0)))
        after = min(place + 1, len(self.sizes) - 1)
        step = self.sizes[after] - self.sizes[place]
        part = (size - self.sizes[place]) / step if step else 0.0
        seconds = self.seconds[place] + part * (self.seconds[after] - self.seconds[place])
        held = self.bytes[place] + part * (self.bytes[after] - self.bytes[place])
        return seconds, np.floor(held)


@dataclass(frozen=True)
class LayerProfile:
    """A chain of layers as Harmony's profiler sees it.

    Attributes:
        forward: costs by microbatch size. The bytes of a layer include its input.
        backward: costs by microbatch size, with the recomputed forward. The bytes of a layer include its input.
        input_bytes: bytes of each layer's input, for one sample.
        weights_bytes: bytes of each layer's weights and buffers.
        step_s: seconds of each layer's optimizer step on the host.
    """

    forward: DirectionCosts
    backward: DirectionCosts
    input_bytes: Array
    weights_bytes: Array
    step_s: Array

    def __post_init__(self) -> None:
        shapes = {a.shape[1] for p in (self.forward, self.backward) for a in (p.seconds, p.bytes)}
        if shapes != {self.layers} or not len(self.input_bytes) == len(self.weights_bytes) == self.layers:
            raise InputError(
                "profile", "lists of different lengths", "one value for each layer", "Profile the model again."
            )

    @property
    def layers(self) -> int:
        """Number of layers."""
        return len(self.step_s)

    @cached_property
    def border_bytes(self) -> Array:
        """Bytes of one sample's input of each layer, and 0 after the last layer."""
        return np.append(self.input_bytes, 0.0)


class Sized(NamedTuple):
    """Prefix sums over layers at one microbatch size; shape (layers + 1,) each.

    Sums of bytes leave out the layers' inputs. `border` is not a sum: it has the bytes of a microbatch's input of each
    layer, and 0 after the last layer.
    """

    forward_s: Array
    backward_s: Array
    forward_bytes: Array
    backward_bytes: Array
    border: Array


def sized(profile: LayerProfile, size: int) -> Sized:
    """Compute the prefix sums at a microbatch size.

    The sums of a direction are infinite for a size below or above its profiled sizes: there is no extrapolation.
    """
    border = profile.border_bytes * size
    sums = []
    for way in (profile.forward, profile.backward):
        if not way.sizes[0] <= size <= way.sizes[-1]:
            sums.append((np.full(profile.layers + 1, np.inf),) * 2)
            continue
        seconds, held = way.at(size)
        sums.append((_prefix(seconds), _prefix(held - border[:-1])))
    return Sized(sums[0][0], sums[1][0], sums[0][1], sums[1][1], border)


def _prefix(values: Array) -> Array:
    return np.concatenate(([0.0], np.cumsum(values)))


def forward_bytes(at: Sized, pack: Pack, kept: Sequence[int]) -> float:
    """Bytes of a forward task.

    They are its working memory, two copies of its input, its output, and the inputs of backward packs that it keeps.

    Arguments:
        at: prefix sums at the microbatch size.
        kept: first layer of each backward pack but the last.
    """
    held = float(
        at.forward_bytes[pack.end] - at.forward_bytes[pack.first] + 2 * at.border[pack.first] + at.border[pack.end]
    )
    return held + sum(float(at.border[layer]) for layer in kept if pack.first <= layer < pack.end)


def backward_bytes(at: Sized, pack: Pack) -> float:
    """Bytes of a backward task.

    They are its working memory, two copies of its input, two gradients of its input (one in the first pack), and the
    gradient of its output.

    Arguments:
        at: prefix sums at the microbatch size.
    """
    copies = 4 if pack.first else 3  # the batch needs no gradient
    held = at.backward_bytes[pack.end] - at.backward_bytes[pack.first]
    return float(held + copies * at.border[pack.first] + at.border[pack.end])
