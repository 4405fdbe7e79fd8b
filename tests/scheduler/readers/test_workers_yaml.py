"""Workers from YAML: a list of types, or a cluster file of plans."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.hardware.catalog import device_type
from hocket.scheduler.model.worker_types import WorkerType
from hocket.scheduler.readers import throughputs_json, workers_yaml


def test_a_list_of_types(tmp_path: Path) -> None:
    """A list of types, with all fields or only the required ones."""
    path = tmp_path / "workers.yaml"
    path.write_text(
        "workers:\n  - {name: v100, workers: 36, per_server: 4, price_usd_per_hour: 2.5}\n  - {name: k80, workers: 2}\n"
    )
    assert workers_yaml.read(path) == (WorkerType("v100", 36, 4, 2.5), WorkerType("k80", 2))


def test_a_cluster_file_counts_by_type(tmp_path: Path) -> None:
    """A cluster file counts devices by type.

    Types have the table's name if it has only the first word of their names.
    """
    path = tmp_path / "cluster.yaml"
    path.write_text(
        "name: mixed\nlevels:\n  - {name: server, width: 4, bandwidth_bytes_per_s: 1e9}\n"
        "  - {name: cluster, width: 2, bandwidth_bytes_per_s: 1e9}\n"
        "nodes:\n  - {device_type: v100-16gb, devices: 4}\n  - {device_type: k80, devices: 4}\n"
    )
    assert workers_yaml.read(path) == (WorkerType("v100-16gb", 4, 4), WorkerType("k80", 4, 4))
    assert workers_yaml.read(path, throughputs_json.packaged()) == (WorkerType("v100", 4, 4), WorkerType("k80", 4, 4))


_PRICED = (
    "name: mine\nlevels:\n  - {name: server, width: 4, bandwidth_bytes_per_s: 1e9}\n"
    "  - {name: cluster, width: 2, bandwidth_bytes_per_s: 1e9}\n"
)


def test_prices_of_a_cluster_file_are_kept(tmp_path: Path) -> None:
    """Nodes, the cluster or the device type give the price, in this order."""
    path = tmp_path / "cluster.yaml"
    path.write_text(_PRICED + "device_type: v100-16gb\nprice_usd_per_hour: 2.5\n")
    assert workers_yaml.read(path) == (WorkerType("v100-16gb", 8, 4, 2.5),)
    path.write_text(
        _PRICED + "price_usd_per_hour: 2.5\nnodes:\n  - {device_type: v100-16gb, devices: 4}\n"
        "  - {device_type: k80, devices: 4, price_usd_per_hour: 0.45}\n"
    )
    assert [own.price_usd_per_hour for own in workers_yaml.read(path)] == [2.5, 0.45]
    path.write_text(_PRICED + "device_type: h100\n")
    assert [own.price_usd_per_hour for own in workers_yaml.read(path)] == [device_type("h100").price_usd_per_hour]


def test_two_prices_of_a_worker_type_are_refused(tmp_path: Path) -> None:
    """A worker type has one price; devices that a table merges into one type may differ in theirs."""
    path = tmp_path / "cluster.yaml"
    nodes = (
        "nodes:\n  - {device_type: v100-16gb, devices: 4, price_usd_per_hour: 2}\n  - {device_type: %s, devices: 4}\n"
    )
    path.write_text(_PRICED + nodes % "v100-32gb")
    assert [own.price_usd_per_hour for own in workers_yaml.read(path)] == [2.0, 0.0]
    with pytest.raises(InputError, match=r"cluster.yaml: nodes: price_usd_per_hour of v100: found 2 and none"):
        workers_yaml.read(path, throughputs_json.packaged())


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("- 1\n", "workers.yaml"),
        ("workers: []\n", "workers.yaml: workers"),
        ("workers:\n  - {name: v100, workers: -1}\n", "workers.yaml, line 2: workers.0: worker type v100: workers"),
        ("workers:\n  - {name: v100, workers: 1, colour: red}\n", "colour"),
        (
            "workers:\n  - {name: v100, workers: 1}\n  - {name: v100, workers: 2}\n",
            "workers.yaml, line 3: workers.1.name: found 'v100', a second type",
        ),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path: Path, text: str, place: str) -> None:
    """Each mistake gives one clear error."""
    path = tmp_path / "workers.yaml"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        workers_yaml.read(path)
    assert place in str(caught.value)
