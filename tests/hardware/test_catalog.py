"""Catalogue of device types: one data file for each type."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.hardware import catalog
from hocket.hardware.catalog import device_type, names

# Memory in GB, memory bandwidth in GB/s and single precision TFLOPS as the makers' data sheets print them, per board.
DATA_SHEETS = {
    "k80": (24 / 2, 480 / 2, 8.74 / 2),
    "p100": (16, 732, 10.6),
    "v100-16gb": (16, 900, 15.7),
    "v100-32gb": (32, 900, 15.7),
    "a100-40gb": (40, 1555, 19.5),
    "a100-80gb": (80, 2039, 19.5),
    "h100": (80, 3350, 67),
    "h200": (141, 4800, 67),
    "cpu-core": (4, 204.8 / 64, 2.45e-3 * 32),
}


def test_the_catalogue_is_complete() -> None:
    """The catalogue has all documented device types.

    It has only files with a data sheet in this test.
    """
    assert set(names()) == set(DATA_SHEETS)


@pytest.mark.parametrize("name", names())
def test_every_file_is_the_data_sheet(name: str) -> None:
    """Memory, bandwidth and single precision rate are those of the data sheet.

    Units are bytes and operations per second.
    """
    device = device_type(name)
    shown = (device.memory_bytes / 1e9, device.memory_bandwidth_bytes_per_s / 1e9, device.flops_per_s["float32"] / 1e12)
    assert shown == pytest.approx(DATA_SHEETS[name], rel=1e-9)


@pytest.mark.parametrize("name", names())
def test_every_file_names_its_source(name: str) -> None:
    """The name is the file's name; `source` names maker, document and year."""
    device = device_type(name)
    assert device.name == name
    assert device.source.startswith(("NVIDIA", "AMD"))
    assert "(20" in device.source or " 20" in device.source


@pytest.mark.parametrize("name", names())
def test_rates_fall_with_precision(name: str) -> None:
    """Double precision is slower than single, and single than the tensor formats.

    So a swapped pair would be noticed.
    """
    rates = device_type(name).flops_per_s
    order = [rates[kind] for kind in ("float64", "float32", "tfloat32", "float16") if kind in rates]
    assert order == sorted(order)
    assert rates.get("bfloat16", rates.get("float16")) == rates.get("float16")


def test_an_unknown_name_offers_the_nearest() -> None:
    """A misspelt name gets the nearest one as a hint, in any case.

    For other names, the error says how to describe a type.
    """
    with pytest.raises(InputError, match="Did you mean 'v100-16gb'"):
        device_type("V100-16GB ")
    for name in ("zzzzzzzz", "b200", "h20", "h800"):  # real types, which are no misspelt h100 or h200
        with pytest.raises(InputError, match=r"h100, h200, .*a type of your own under `types`") as caught:
            device_type(name)
        assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("name", ["../catalog/k80", "k80.toml", "", "/etc/passwd"])
def test_a_name_is_no_path(name: str) -> None:
    """A name cannot reach files outside the catalogue."""
    with pytest.raises(InputError, match="device type"):
        device_type(name)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("memory_bytes = ", "a TOML document"),
        ("memory = 3", "unknown key 'memory'"),
        ("memory_bytes = -1.0\nmemory_bandwidth_bytes_per_s = 1.0\nflops_per_s = {}", "> 0"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, wanted: str) -> None:
    """A wrong data file is refused, with the place of the error."""
    (tmp_path / "mine.toml").write_text(text)
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    with pytest.raises(InputError, match=r"mine\.toml") as caught:
        device_type.__wrapped__("mine")
    assert wanted in str(caught.value)


def test_a_new_file_is_a_new_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with the fields of DeviceType adds a device type."""
    (tmp_path / "mine.toml").write_text(
        "memory_bytes = 1e9\nmemory_bandwidth_bytes_per_s = 2e9\nflops_per_s = { float32 = 3e9 }\nlaunch_s = 4e-6\n"
    )
    monkeypatch.setattr(catalog, "_FOLDER", tmp_path)
    device = device_type.__wrapped__("mine")
    assert (device.name, device.memory_bytes, device.launch_s) == ("mine", 1e9, 4e-6)
    assert {field.name for field in fields(device)} >= {"host_bandwidth_bytes_per_s", "price_usd_per_hour"}


def test_a_card_is_known_by_its_drivers_name() -> None:
    """A card is known by its driver's name, which is in one file only.

    A card that is not listed keeps its driver's name.
    """
    assert catalog.type_of_card("NVIDIA H100 80GB HBM3") == "h100"
    assert catalog.type_of_card("NVIDIA A100-SXM4-80GB") == "a100-80gb"
    assert catalog.type_of_card("NVIDIA GeForce RTX 4090") == "NVIDIA GeForce RTX 4090"
    cards = [card for name in names() for card in _cards(name)]
    assert len(cards) == len(set(cards)) > 0


def _cards(name: str) -> list[str]:
    path = Path(catalog.__file__).parent / f"{name}.toml"
    return list(tomllib.loads(path.read_text()).get("cards", ()))
