"""Cluster: devices in a hierarchy of levels."""

import re
from dataclasses import fields
from math import prod
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.errors import InputError
from hocket.hardware.catalog import device_type, names
from hocket.hardware.cluster import Cluster, Level, Link, Node
from hocket.hardware.device_type import DeviceType

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "clusters").glob("*.yaml"))

positive = st.floats(min_value=1e-3, max_value=1e15)
seconds = st.floats(min_value=0, max_value=10)
links = st.builds(Link, positive, seconds)
words = st.text("abcdefghijklmnopqrstuvwxyz -#:'0123456789", min_size=1, max_size=10)


@st.composite
def levels_of(draw: st.DrawFn) -> tuple[Level, ...]:
    """One to four levels with any figures."""
    level_names = draw(st.lists(words, min_size=1, max_size=4, unique=True))
    return tuple(
        Level(
            name, draw(st.integers(1, 5)), draw(positive), draw(seconds), draw(st.booleans()), draw(st.none() | links)
        )
        for name in level_names
    )


@st.composite
def device_types(draw: st.DrawFn) -> DeviceType:
    """A custom device type."""
    return DeviceType(
        "own", draw(positive), {"float32": draw(positive)}, draw(positive), draw(positive), host_shared=draw(st.booleans()),
        price_usd_per_hour=draw(st.none() | positive), source=draw(words),
    )  # fmt: skip


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Any legal cluster, of one device type or several.

    Types are its own or the catalogue's.
    """
    levels = draw(levels_of())
    types = (draw(device_types()),) if draw(st.booleans()) else ()
    kind = st.sampled_from([*names(), *(t.name for t in types)])
    limit = st.none() | positive
    left, nodes = prod(level.width for level in levels), []
    mixed = draw(st.booleans())
    while mixed and left:
        count = draw(st.integers(1, left))
        nodes.append(Node(draw(kind), count, draw(limit), draw(limit)))
        left -= count
    single = "" if mixed else draw(kind)
    return Cluster(
        draw(words), levels, single, draw(limit), draw(limit), draw(limit), draw(seconds), nodes=tuple(nodes), types=types,
        host_link=draw(st.none() | links),
    )  # fmt: skip


def flat(width: int = 4) -> Cluster:
    """V100 devices on one level."""
    return Cluster("flat", (Level("server", width, 1e9),), "v100-16gb")


@given(clusters())
def test_round_trip(cluster: Cluster) -> None:
    """Reading is the inverse of writing, for any cluster."""
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster


def test_sizes_with_units() -> None:
    """Sizes may have units wherever bytes or bytes per second are expected.

    Units are those of the command line. Errors name the key.
    """
    text = """
levels: [{name: server, width: 2, bandwidth_bytes_per_s: 10Gbit/s, all_reduce: {bandwidth_bytes_per_s: 1GB/s}}]
name: units
memory_bytes: 1.5 GiB
host_link: {bandwidth_bytes_per_s: 11.5GiB/s}
nodes: [{device_type: own, devices: 2, host_memory_bytes: 64GB}]
types:
- {name: own, memory_bytes: 2GB, flops_per_s: {float32: 1e12}, memory_bandwidth_bytes_per_s: 900GB/s}
"""
    cluster = Cluster.from_yaml(text)
    assert cluster.levels[0].link == Link(1.25e9)
    assert cluster.levels[0].all_reduce == Link(1e9)
    assert (cluster.memory_bytes, cluster.host_link) == (1.5 * 2**30, Link(11.5 * 2**30))
    assert cluster.nodes[0].host_memory_bytes == 64e9
    assert cluster.types[0].memory_bandwidth_bytes_per_s == 900e9
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster
    for good, bad, place in (
        ("1GB/s", "1GB", "levels.0.all_reduce.bandwidth_bytes_per_s"),
        ("64GB", "lots", "nodes.0.host_memory_bytes"),
        ("name: units", "name: 2GB\nhost_cores: 2GB", "host_cores"),
    ):
        with pytest.raises(InputError) as caught:
            Cluster.from_yaml(text.replace(good, bad), "c.yaml")
        assert caught.value.place == f"c.yaml: {place}"


def test_the_page_lists_every_key() -> None:
    """The documentation lists every key of a cluster, a level, a node and a type.

    Each has a table, without other keys. The page's example is a cluster.
    """
    page = (Path(__file__).parents[2] / "docs" / "reference" / "cluster-file.md").read_text()
    tables = page.split("\n## ")[1:]
    for table, kind in zip(tables, (Cluster, Level, Node, DeviceType), strict=True):
        firsts = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
        assert sorted(re.findall(r"`(\w+)`", " ".join(firsts))) == sorted(one.name for one in fields(kind))
    example = Cluster.from_yaml(page.partition("```yaml\n")[2].partition("```")[0])
    assert example.host_link == Link(11.5 * 2**30, 10e-6)


@given(clusters(), st.data())
def test_levels_follow_from_numbers(cluster: Cluster, data: st.DataObject) -> None:
    """The nearest common level is the innermost one that contains both devices.

    It is compared with plain counting.

    It is compared with plain counting.
    """
    number = st.integers(0, cluster.devices - 1)
    first, second = data.draw(number), data.draw(number)
    position = [(device, device) for device in range(cluster.devices)]
    expected, span = None, 1
    for k, level in enumerate(cluster.levels):
        span *= level.width
        together = [{device for device, _ in position[i : i + span]} for i in range(0, cluster.devices, span)]
        if expected is None and any({first, second} <= group for group in together):
            expected = k
    assert cluster.level_between(first, second) == expected == cluster.level_between(second, first)
    assert cluster.link_between(first, second) == cluster.levels[expected or 0].link
    assert cluster.level_of((first, second)) == expected


@given(clusters(), st.data())
def test_a_component_holds_its_devices(cluster: Cluster, data: st.DataObject) -> None:
    """Two devices share a component of level k if a level below k joins them.

    Otherwise they do not, unless they are the same device.

    A device shares each component with itself.
    """
    number = st.integers(0, cluster.devices - 1)
    first, second = data.draw(number), data.draw(number)
    for k in range(len(cluster.levels)):
        same = cluster.component(first, k) == cluster.component(second, k)
        assert same == (first == second or cluster.level_between(first, second) < k)


def test_levels_by_hand() -> None:
    """Levels of known devices: servers of 4 in racks of 2, two racks.

    Three devices are at known distances from device 1.
    """
    levels = (Level("server", 4, 4e9), Level("rack", 2, 2e9), Level("hall", 2, 1e9))
    cluster = Cluster("hall", levels, "v100-16gb")
    assert cluster.devices == 16
    assert [cluster.level_between(1, other) for other in (1, 3, 4, 7, 8, 15)] == [0, 0, 1, 1, 2, 2]
    assert cluster.level_of((0, 1, 2, 3)) == 0
    assert cluster.level_of((0, 5, 6)) == 1
    assert cluster.level_of((15, 0)) == 2
    assert [cluster.component(5, k) for k in range(3)] == [5, 1, 0]
    assert [cluster.component(12, k) for k in range(3)] == [12, 3, 1]


@pytest.mark.parametrize("pair", [(0, 4), (4, 0), (-1, 0), (4, 4), (9, 9)])
def test_numbers_outside_are_refused(pair: tuple[int, int]) -> None:
    """A device number that does not exist is refused."""
    with pytest.raises(InputError, match="numbers 0 to 3"):
        flat(4).level_between(*pair)
    with pytest.raises(InputError, match="0 to 3"):
        flat(4).type_of(max(pair, key=abs))


def test_a_link_is_alpha_beta() -> None:
    """Seconds of a link are latency plus bytes over bandwidth."""
    assert Link(1e9, 1e-3).seconds(2e6) == pytest.approx(3e-3)
    assert Level("l", 2, 1e9, 1e-3).link == Link(1e9, 1e-3)


def test_mixed_nodes_run_in_numbering_order() -> None:
    """Each device has its node's type and memory limit, else the type's memory."""
    nodes = (Node("a100-40gb", 3), Node("v100-16gb", 1, memory_bytes=15e9))
    cluster = Cluster("mixed", (Level("l", 4, 1e9),), nodes=nodes)
    assert [cluster.type_of(d).name for d in range(4)] == ["a100-40gb"] * 3 + ["v100-16gb"]
    assert [cluster.capacity_bytes(d) for d in range(4)] == [40e9] * 3 + [15e9]


def test_a_limit_of_the_whole_cluster() -> None:
    """`memory_bytes` of the cluster holds for nodes without a limit."""
    assert Cluster("c", (Level("l", 2, 1e9),), "v100-16gb", memory_bytes=9e9).capacity_bytes(1) == 9e9
    nodes = (Node("a100-40gb", 1), Node("v100-16gb", 1, memory_bytes=15e9))
    mixed = Cluster("m", (Level("l", 2, 1e9),), nodes=nodes, memory_bytes=9e9)
    assert [mixed.capacity_bytes(d) for d in range(2)] == [9e9, 15e9]


def test_a_type_of_ones_own_wins() -> None:
    """A device type in the file replaces one of the catalogue."""
    own = DeviceType("v100-16gb", 1e9, {"float32": 1e12}, 1e11)
    cluster = Cluster("c", (Level("l", 2, 1e9),), "v100-16gb", types=(own,))
    assert cluster.type_of(0) == own
    assert flat().type_of(0) == device_type("v100-16gb")


GOOD = """
name: c
device_type: v100-16gb
levels:
  - {name: server, width: 4, bandwidth_bytes_per_s: 1e9}
"""


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("width: 4", "widht: 4", r"c\.yaml: levels\.0\.widht: found unknown key 'widht'.*Did you mean 'width'\?"),
        ("name: c", "name: c\nbatch: 3", r"c\.yaml: batch: found unknown key 'batch'; expected one of name, levels"),
        ("width: 4", "width: 0", r"c\.yaml: levels\.0\.width: found 0; expected >= 1"),
        ("width: 4", "width: four", r"c\.yaml: levels\.0\.width: found 'four'"),
        ("width: 4", "width: 2.5", r"c\.yaml: levels\.0\.width: found 2\.5"),
        ("1e9", "0", r"c\.yaml: levels\.0\.bandwidth_bytes_per_s: found 0.*expected > 0"),
        ("1e9", ".nan", r"bandwidth_bytes_per_s: found nan; expected > 0"),
        ("1e9}", "1e9, latency_s: -1}", r"latency_s: found -1.*expected >= 0"),
        ("device_type: v100-16gb", "", r"c\.yaml: device_type: found nothing; expected either device_type or nodes"),
        ("v100-16gb", "v100-16", r"c\.yaml: device_type: found 'v100-16'.*Did you mean 'v100-16gb'\?"),
        ("v100-16gb", "v100-16gb\nmemory_bytes: 0", r"memory_bytes: found 0.*> 0"),
        ("v100-16gb", "v100-16gb\nhost_cores: 0", r"host_cores: found 0.*> 0"),
        ("v100-16gb", "v100-16gb\ntransfer_cores: -1", r"transfer_cores: found -1.*>= 0"),
        ("v100-16gb", "v100-16gb\ncollective_cores: -1", r"collective_cores: found -1.*>= 0"),
        ("device_type: v100-16gb", "nodes: [{device_type: k80, devices: 3}]", r"nodes: found 3 devices; expected 4"),
        ("device_type: v100-16gb", "nodes: [{device_type: k80, devices: -4}]", r"devices: found -4; expected >= 1"),
        ("levels:", "nodes: [{device_type: k80, devices: 4}]\nlevels:", r"device_type: found device_type and nodes"),
        ("levels:", "levels:\n  - {name: server, width: 2, bandwidth_bytes_per_s: 1}", r"unique names"),
        ("levels:", "levels: []\nother:", r"unknown key 'other'"),
        (GOOD, "", r"c\.yaml: found an empty file; expected a cluster"),
        (GOOD, "# A title\n\ta: b", r"c\.yaml, line 2: found 'a: b': character .*; expected a cluster"),
        (GOOD, '{"format": "hocket-profile-1"}', r"c\.yaml: found what seems to be a profile; expected a cluster"),
        (GOOD, "name: c\nlevels: []\ndevice_type: k80", r"levels: found none; expected at least one level"),
        (
            GOOD,
            "name: c\nlevels:\n- {name: a, width: 4, bandwidth_bytes_per_s: 1}\n"
            "- {name: b, width: 1000000000, bandwidth_bytes_per_s: 1}\ndevice_type: k80",
            r"levels: found 4 x 1000000000 devices; expected at most 131,072 devices",
        ),
    ],
)
def test_wrong_files_name_the_place(old: str, new: str, message: str) -> None:
    """Each mistake in a cluster file gives one error.

    It has the place, what was found and what was expected.
    """
    assert Cluster.from_yaml(GOOD, "c.yaml").devices == 4
    assert old in GOOD
    with pytest.raises(InputError, match=message):
        Cluster.from_yaml(GOOD.replace(old, new), "c.yaml")


def test_files_are_kept(tmp_path: Path) -> None:
    """A saved cluster is read back."""
    flat().save(tmp_path / "c.yaml")
    assert Cluster.read(tmp_path / "c.yaml") == flat()


def test_the_examples_cover_the_published_clusters() -> None:
    """Examples include clusters A, B and C of table 2.1, with their devices and types.

    The table is in Narayanan's dissertation.
    """
    found = {path.stem: Cluster.read(path) for path in EXAMPLES}
    shapes = {name: (tuple(level.width for level in c.levels), c.type_of(0).name) for name, c in found.items()}
    assert shapes["pipedream-a"] == ((4, 4), "v100-16gb")
    assert shapes["pipedream-b"] == ((8, 2), "v100-16gb")
    assert shapes["pipedream-c"] == ((4,), "titan-x")
    assert [
        level.bandwidth_bytes_per_s * 8e-9 for level in (found["pipedream-a"].levels[1], found["pipedream-b"].levels[1])
    ] == [10, 25]
    assert found["pipedream-a"].levels[0].shared
    assert not found["pipedream-b"].levels[0].shared
    assert found["pipedream-c"].capacity_bytes(0) == 12e9


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_read(path: Path) -> None:
    """Each example is a legal cluster with comments, named as its file.

    It survives writing.
    """
    cluster = Cluster.read(path)
    assert cluster.name == path.stem
    assert path.read_text().startswith("# ")
    assert Cluster.from_yaml(cluster.to_yaml()) == cluster
