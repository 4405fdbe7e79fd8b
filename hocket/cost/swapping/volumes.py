"""Bytes that an iteration swaps between devices and host, by kind of tensor.

The assumptions are those of the paper. A pack is a run of layers that a device runs together. An operation is the
forward, backward or update of one layer or pack, for one microbatch. A device holds the values of one operation at a
time, so all values that the next task does not share are evicted. A task is an operation; with grouping, a task is the
same operation for all microbatches. A just-in-time update belongs to the last backward task.
docs/explanation/harmony.md derives every formula. The paper prints only those of the weights: (4m + 2)N|W|, 3N|W| and
3|W|.

Source: Harmony (HotOS 2021), section 3 and figure 5.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from hocket.errors import InputError


class SwapKind(StrEnum):
    """Kinds of tensors that are swapped."""

    WEIGHTS = "weights"
    GRADIENTS = "gradients"  # of weights, accumulated over microbatches
    OPTIMIZER = "optimizer"
    STASH = "stash"  # tensors that autograd saves in a layer's forward for its backward
    ACTIVATIONS = "activations"  # from layer to layer, and the batch itself
    ACTIVATION_GRADIENTS = "activation gradients"


class Volume(NamedTuple):
    """Bytes that one kind of tensor moves in an iteration, over all devices.

    Attributes:
        host_bytes: bytes from devices to hosts, and back.
        peer_bytes: bytes from device to device; each transfer counts once.
    """

    host_bytes: float
    peer_bytes: float


@dataclass(frozen=True)
class SwapLayer:
    """Bytes of one layer's tensors.

    Saved activations (`stash_bytes`) and input are those of one microbatch. The gradient of the input has the size of
    the input.
    """

    weights_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    stash_bytes: float
    input_bytes: float


@dataclass(frozen=True)
class Scheme:
    """Execution scheme of an iteration. Each field is one of the paper's choices.

    Attributes:
        devices: number of devices, N.
        microbatches: number of microbatches, m, in one device's share of the batch; the batch has m N.
        pipeline: True if a layer's tasks for all microbatches run on one device; False for data parallelism.
        in_turn: True if consecutive packs of a pipeline are on consecutive devices, in turn; False if each device has
            equally many neighbouring packs.
        grouped: True if a task runs all microbatches of its device.
        just_in_time: True if the update of a pack directly follows the pack's last backward.
        peer: True if values go directly from device to device; False if they go through the host.
        packs: index of the first layer of each pack; () for packs of one layer.
        writes_clean: True if an evicted value is written to the host even if the host has the same copy (virtual
            memory of each device alone); False if it is dropped.
        forward: index of the first layer of each forward task, in data parallelism; () for the same as `packs`. A task
            runs one microbatch through all its layers, then the next.
    """

    devices: int
    microbatches: int
    pipeline: bool = False
    in_turn: bool = False
    grouped: bool = False
    just_in_time: bool = False
    peer: bool = True
    packs: tuple[int, ...] = ()
    writes_clean: bool = True
    forward: tuple[int, ...] = ()

    def first_layers(self, layers: int) -> tuple[int, ...]:
        """Index of the first layer of each pack.

        Without `packs`, each layer is a pack.

        Arguments:
            layers: number of layers of the model.

        Raises:
            InputError: the indices do not begin with 0, are not ascending, or are not below `layers`.
        """
        return self._checked(self.packs or tuple(range(layers)), layers)

    def first_forward_layers(self, layers: int) -> tuple[int, ...]:
        """Index of the first layer of each forward task.

        Without `forward`, each pack is a forward task.

        Arguments:
            layers: number of layers of the model.

        Raises:
            InputError: the indices do not begin with 0, are not ascending, or are not below `layers`; or a pipeline
                has separate forward tasks.
        """
        if self.forward and self.pipeline:
            raise InputError(
                "forward", str(self.forward), "none: forward tasks of a pipeline are its packs", "Leave it out."
            )
        return self._checked(self.forward or self.first_layers(layers), layers)

    @staticmethod
    def _checked(packs: tuple[int, ...], layers: int) -> tuple[int, ...]:
        if packs[0] != 0 or packs[-1] >= layers or any(a >= b for a, b in pairwise(packs)):
            raise InputError(
                "packs", str(packs), f"ascending first layers from 0, below {layers}", "Correct the packs."
            )
        return packs

    def forward_device(self, pack: int, packs: int) -> int:
        """Device of a pack's forward in a pipeline.

        Arguments:
            pack: number of the pack.
            packs: number of packs.
        """
        return pack % self.devices if self.in_turn else pack * self.devices // packs

    def backward_device(self, pack: int, packs: int) -> int:
        """Device of a pack's backward and update in a pipeline.

        If packs are on devices in turn, the backward of the last pack is on the device after that of its forward.

        Arguments:
            pack: number of the pack.
            packs: number of packs.
        """
        return (2 * packs - 1 - pack) % self.devices if self.in_turn else self.forward_device(pack, packs)


def data_parallel(devices: int, microbatches: int) -> Scheme:
    """Data parallelism with virtual memory of each device alone."""
    return Scheme(devices, microbatches)


def pipeline_parallel(devices: int, microbatches: int) -> Scheme:
    """A pipeline of stages with virtual memory of each device alone."""
    return Scheme(devices, microbatches, pipeline=True)


def harmony_data(devices: int, microbatches: int, packs: tuple[int, ...] = ()) -> Scheme:
    """Harmony-DP: Harmony with data parallelism."""
    return Scheme(devices, microbatches, grouped=True, just_in_time=True, packs=packs, writes_clean=False)


def harmony_pipeline(devices: int, microbatches: int, packs: tuple[int, ...] = ()) -> Scheme:
    """Harmony-PP: Harmony with pipeline parallelism."""
    return Scheme(devices, microbatches, True, True, True, True, packs=packs, writes_clean=False)


def swap_volumes(layers: Sequence[SwapLayer], scheme: Scheme) -> dict[SwapKind, Volume]:
    """Bytes that an iteration moves, by kind of tensor.

    All-reduces of gradients are not swaps and do not count.
    """
    firsts = scheme.first_layers(len(layers))
    replicas = 1 if scheme.pipeline else scheme.devices
    seen = scheme.microbatches * (scheme.devices if scheme.pipeline else 1)  # microbatches of one layer on one device
    tasks = 1 if scheme.grouped else seen
    apart = 0 if scheme.just_in_time else 1  # 1 if the update is a separate task
    loads = 2 * tasks + apart
    writes = loads if scheme.writes_clean else 1
    weights = sum(layer.weights_bytes for layer in layers)
    gradients = sum(layer.gradients_bytes for layer in layers)
    optimizer = sum(layer.optimizer_bytes for layer in layers)
    stash = sum(layer.stash_bytes for layer in layers)
    ahead, back = (
        _borders(layers, scheme, [device(k, len(cuts)) for k in range(len(cuts))], cuts, seen)
        for device, cuts in (
            (scheme.forward_device, scheme.first_forward_layers(len(layers))),
            (scheme.backward_device, firsts),
        )
    )
    batch = seen * layers[0].input_bytes
    return {
        SwapKind.WEIGHTS: Volume(replicas * (loads + writes) * weights, 0.0),
        SwapKind.GRADIENTS: Volume(replicas * 2 * (tasks - 1 + apart) * gradients, 0.0),
        SwapKind.OPTIMIZER: Volume(replicas * 2 * optimizer, 0.0),
        SwapKind.STASH: Volume(replicas * 2 * seen * stash, 0.0),
        SwapKind.ACTIVATIONS: Volume(replicas * (ahead.host_bytes + batch), ahead.peer_bytes),
        SwapKind.ACTIVATION_GRADIENTS: Volume(replicas * back.host_bytes, back.peer_bytes),
    }


def _borders(
    layers: Sequence[SwapLayer], scheme: Scheme, device: Sequence[int], firsts: Sequence[int], seen: int
) -> Volume:
    """Bytes between consecutive packs in one direction, forward or backward.

    In data parallelism, the bytes are of one device.

    Arguments:
        device: device of each pack.
        firsts: index of the first layer of each pack.
        seen: number of microbatches that a layer runs on one device.
    """
    host, peer = 0.0, 0.0
    for k in range(1, len(firsts)):
        size = seen * layers[firsts[k]].input_bytes
        if scheme.pipeline and scheme.peer and device[k] != device[k - 1]:
            peer += size
        else:
            host += 2 * size
    return Volume(host, peer)
