"""Sub-clusters of a cluster: their number, validity and prices."""

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given

from hocket.errors import InputError
from hocket.hardware.cluster import Cluster, Level, Node
from hocket.hardware.parts import parts, price_of, usd_per_hour
from tests.hardware.test_cluster import clusters
from tests.tiers import examples

EXAMPLES = Path(__file__).parents[2] / "examples" / "clusters"
LEVELS = (Level("server", 4, 1e11, shared=False), Level("cluster", 3, 1e9))
ALIKE = Cluster("alike", LEVELS, "v100-16gb", price_usd_per_hour=3.0)
MIXED = Cluster("mixed", LEVELS, nodes=(Node("h100", 4), Node("v100-16gb", 8, price_usd_per_hour=2.0)))


def test_servers_whole_or_a_part_of_one() -> None:
    """One to four devices of a server, two servers, and the cluster itself."""
    found = parts(ALIKE)
    assert [part.devices for part in found] == [1, 2, 3, 4, 8, 12]
    assert found[-1].cluster is ALIKE
    assert [level.width for level in found[-2].cluster.levels] == [4, 2]
    assert [part.usd_per_hour for part in found] == [3.0 * part.devices for part in found]
    assert found[1].cluster.name == "2 v100-16gb of alike"


def test_kinds_of_a_mixed_cluster() -> None:
    """Parts of each kind's server, servers of one kind, and one of each."""
    found = [tuple((node.device_type, node.devices) for node in part.cluster.nodes) for part in parts(MIXED)]
    whole = (("h100", 4), ("v100-16gb", 8))
    small = [((kind, k),) for k in range(1, 5) for kind in ("h100", "v100-16gb")]
    assert sorted(found[:-1]) == sorted([*small, (("v100-16gb", 8),), (("h100", 4), ("v100-16gb", 4))])
    assert found[-1] == whole
    assert usd_per_hour(MIXED) == pytest.approx(4 * 12.29 + 8 * 2.0)


@examples(50)
@given(cluster=clusters())
def test_every_part_is_a_cluster(cluster: Cluster) -> None:
    """Every sub-cluster is a different, smaller cluster with a text form."""
    found = parts(cluster)
    assert found[-1].cluster == cluster
    assert all(part.devices < cluster.devices for part in found[:-1])
    assert [part.devices for part in found] == sorted(part.devices for part in found)
    assert len({(part.cluster.levels, part.cluster.nodes) for part in found}) == len(found)
    for part in found[:3]:
        assert Cluster.from_yaml(part.cluster.to_yaml()) == part.cluster


def test_whose_price_counts() -> None:
    """The node's price counts, else the cluster's, else the type's.

    If one is unknown, so is the price of the whole.
    """
    assert price_of(replace(MIXED, price_usd_per_hour=1.5), 0) == 1.5
    assert price_of(MIXED, 0) == 12.29
    assert price_of(replace(MIXED, price_usd_per_hour=1.5), 4) == 2.0
    assert usd_per_hour(replace(ALIKE, price_usd_per_hour=None)) is None
    assert usd_per_hour(replace(ALIKE, price_usd_per_hour=0.0)) == 0.0


@pytest.mark.parametrize("text", ["price_usd_per_hour: -1", "price_usd_per_hour: .inf", "price: 1"])
def test_wrong_prices_are_refused(text: str) -> None:
    """Wrong prices are refused by name."""
    with pytest.raises(InputError, match="price"):
        Cluster.from_yaml(ALIKE.to_yaml().replace("price_usd_per_hour: 3.0", text))


@pytest.mark.parametrize("name", ["a100-servers", "mixed", "pipedream-a", "pipedream-b"])
def test_examples_say_what_they_cost_and_who_says_so(name: str) -> None:
    """In the examples, each device has a price, and prices have a source."""
    cluster = Cluster.read(EXAMPLES / f"{name}.yaml")
    assert (usd_per_hour(cluster) or 0) > cluster.devices
    assert cluster.price_source
