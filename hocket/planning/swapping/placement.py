"""Placement of packs: sets of devices, and the device of each pack.

Rules of this file: a set contains all devices, or all devices of one type, because packs on different types wait for
the slowest. If amplification is limited, smaller sets are considered as well. The best set is found by simulation, not
here.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hocket.hardware.cluster import Cluster
from hocket.profiling.profile import ModelProfile
from hocket.strategies.swapping.costs import DirectionCosts, LayerProfile, Server
from hocket.strategies.swapping.from_profile import layer_profile, server_of
from hocket.strategies.swapping.tuner import Mode


@dataclass(frozen=True)
class DeviceSet:
    """Some devices of a cluster, in ascending order."""

    profile: ModelProfile
    cluster: Cluster
    devices: tuple[int, ...]

    @cached_property
    def kinds(self) -> dict[str, int]:
        """First device of each device type in the set, by the type's name."""
        return {self.cluster.node_of(d).device_type: d for d in reversed(self.devices)}

    @cached_property
    def words(self) -> str:
        """End of a plan's label, such as " on 2 A100"; empty for all devices."""
        if len(self.devices) == self.cluster.devices:
            return ""
        return f" on {len(self.devices)} {' and '.join(sorted(self.kinds))}"

    @cached_property
    def server(self) -> Server:
        """Memory and links of the devices, for the tuner.

        Raises:
            InputError: nothing is known about a device type.
        """
        return server_of(self.cluster, self.devices)

    @cached_property
    def layers(self) -> LayerProfile:
        """Seconds and bytes of each layer's tasks, for the tuner.

        If device types differ, the slowest type counts, because equal shares wait for it.

        Raises:
            InputError: the profile has no figures for a device type.
            RefusedError: the job cannot run with such a program.
        """
        first, *others = (layer_profile(self.profile, self.cluster, device) for device in self.kinds.values())
        for other in others:
            forward, backward = (
                DirectionCosts(a.sizes, np.maximum(a.seconds, b.seconds), np.maximum(a.bytes, b.bytes))
                for a, b in ((first.forward, other.forward), (first.backward, other.backward))
            )
            step_s = np.maximum(first.step_s, other.step_s)
            first = LayerProfile(forward, backward, first.input_bytes, first.weights_bytes, step_s)
        return first

    def turns(self, mode: Mode, packs: int) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Yield assignments of packs to devices: the devices of each pack.

        In data mode, each pack is on all devices. In pipeline mode, the packs are on one device each, in turn. With
        several device types, a second assignment follows, which uses fast devices more often.

        Arguments:
            packs: number of packs.
        """
        if mode is Mode.DATA:
            yield (self.devices,) * packs
            return
        yield tuple((self.devices[k % len(self.devices)],) for k in range(packs))
        if len(self.kinds) > 1:
            yield tuple((device,) for device in self._by_rate(packs))

    def _by_rate(self, packs: int) -> Iterator[int]:
        """Yield the device of each pack, by a weighted round robin.

        The next device is the one that is farthest behind its share of the packs, which is proportional to its speed.
        """
        alone_s = {
            kind: float(one.forward.seconds[-1].sum() + one.backward.seconds[-1].sum())
            for kind, one in ((k, layer_profile(self.profile, self.cluster, d)) for k, d in self.kinds.items())
        }
        rates = [1 / alone_s[self.cluster.node_of(device).device_type] for device in self.devices]
        had = [0] * len(rates)
        for _ in range(packs):
            k = min(range(len(rates)), key=lambda k: ((had[k] + 1) / rates[k], k))
            had[k] += 1
            yield self.devices[k]


def left_out(cluster: Cluster) -> str:
    """Sentence about the devices without known host memory.

    Plans with swaps leave them out. Empty if every device has known host memory, or none has.
    """
    others = [cluster.node_of(d).device_type for d in range(cluster.devices) if not cluster.host_bytes(d)]
    if not 0 < len(others) < cluster.devices:
        return ""
    kinds = " and ".join(sorted(set(others)))
    return f"plans that swap do not use {len(others)} {kinds}: the cluster file lacks host_memory_bytes of their nodes"


def places(profile: ModelProfile, cluster: Cluster, limited: bool) -> Iterator[DeviceSet]:
    """Yield sets of devices with known host memory.

    These are all devices of the cluster, if each has known host memory, and all such devices of one type.

    Arguments:
        limited: True if amplification is limited; then half of each set, a quarter, and so on down to one device
            follow.
    """
    every = tuple(d for d in range(cluster.devices) if cluster.host_bytes(d))
    kinds = dict.fromkeys(cluster.node_of(device).device_type for device in every)
    whole = [every] if len(every) == cluster.devices else []
    whole += [tuple(d for d in every if cluster.node_of(d).device_type == kind) for kind in kinds]
    seen = set[tuple[int, ...]]()
    for devices in whole:
        while devices:
            if devices not in seen:
                seen.add(devices)
                yield DeviceSet(profile, cluster, devices)
            devices = devices[: len(devices) // 2] if limited else ()
