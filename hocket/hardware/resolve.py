"""Device type by name: a type of the catalogue, or the type in a cluster file."""

from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.hardware.cluster import Cluster
from hocket.hardware.device_type import DeviceType


def device_type_of(name: str) -> DeviceType:
    """Device type with a catalogue name, or the only device type of a cluster file.

    Raises:
        InputError: the name is neither, or the cluster has several device types.
    """
    if not name.endswith((".yaml", ".yml")):
        return device_type(name)
    cluster = Cluster.read(name)
    kinds = sorted({cluster.node_of(device).device_type for device in range(cluster.devices)})
    if len(kinds) > 1:
        raise InputError(
            name, f"devices of {len(kinds)} types ({', '.join(kinds)})", "devices of one type, or a type's name"
        )
    return cluster.type_of(0)
