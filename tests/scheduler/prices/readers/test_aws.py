"""AWS spot price history."""

import json
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import aws
from tests.scheduler.helpers.public_prices import EXAMPLES

CHANGE = {
    "AvailabilityZone": "us-east-1d",
    "InstanceType": "p3.8xlarge",
    "ProductDescription": "Linux/UNIX",
    "SpotPrice": "4.000000",
    "Timestamp": "1970-01-01T00:01:40.000Z",
}


def write(path: Path, *changes: dict[str, object], **more: object) -> Path:
    """A document as the command prints it."""
    path.write_text(json.dumps({"NextToken": "", "SpotPriceHistory": list(changes), **more}))
    return path


def test_a_change_holds_until_the_next(tmp_path: Path) -> None:
    """A price holds until the next change, for any order of changes and files.

    Instances with four accelerators are recognized, and overlapping files are merged.
    """
    first = write(tmp_path / "a.json", {**CHANGE, "SpotPrice": "5.0", "Timestamp": "1970-01-01T00:03:20+00:00"}, CHANGE)
    second = write(tmp_path / "b.json", CHANGE, {**CHANGE, "AvailabilityZone": "us-east-1a"})
    offers = aws.read([first, second])
    assert [o.key.zone for o in offers] == ["us-east-1a", "us-east-1d"]
    assert offers[1].key.region == "us-east-1"
    assert (offers[1].accelerator, offers[1].accelerators) == ("v100", 4)
    assert offers[1].spot is not None
    assert (offers[1].spot.times_s, offers[1].spot.values) == ((100.0, 200.0), (4.0, 5.0))


def test_other_products_are_left_out_and_other_instances_can_be_told(tmp_path: Path) -> None:
    """Other products are ignored, and other instance types can be passed.

    Windows costs more. An unknown type is refused, with a remedy.
    """
    path = write(
        tmp_path / "a.json", {**CHANGE, "ProductDescription": "Windows"}, {**CHANGE, "InstanceType": "q9.large"}
    )
    with pytest.raises(InputError, match=r"SpotPriceHistory\.1.*Pass its accelerator in the argument `instances`"):
        aws.read([path])
    found = aws.read([path], instances={"q9.large": ("b900", 2)})
    assert [(o.key.instance_type, o.accelerators) for o in found] == [("q9.large", 2)]


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"SpotPrice": "-1.0"}, r"SpotPriceHistory\.0\.SpotPrice"),
        ({"SpotPrice": "nan"}, r"SpotPriceHistory\.0\.SpotPrice"),
        ({"SpotPrice": 1.0}, r"SpotPriceHistory\.0\.SpotPrice"),
        ({"Timestamp": "yesterday"}, r"SpotPriceHistory\.0\.Timestamp"),
        ({"Timestamp": "2020-01-01T00:00:00"}, r"SpotPriceHistory\.0\.Timestamp"),
        ({"AvailabilityZone": "../etc"}, r"SpotPriceHistory\.0\.AvailabilityZone"),
        ({"Colour": "red"}, "unknown key 'Colour'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, object], place: str) -> None:
    """Errors name the field and its place in the document."""
    with pytest.raises(InputError, match=place):
        aws.read([write(tmp_path / "a.json", {**CHANGE, **change})])


def test_two_prices_for_one_moment_are_refused(tmp_path: Path) -> None:
    """Two prices for one time are refused, also in two files."""
    paths = [write(tmp_path / "a.json", CHANGE), write(tmp_path / "b.json", {**CHANGE, "SpotPrice": "3.0"})]
    with pytest.raises(InputError, match=r"b\.json, line 1: SpotPriceHistory\.0\.SpotPrice: found 3\.0"):
        aws.read(paths)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"SpotPriceHistory": 3}', '{"NextToken": ""}', '{"SpotPriceHistory": [', "x"]
)
def test_what_is_no_such_document_is_refused(tmp_path: Path, text: str) -> None:
    """Other documents are refused, with the file's name."""
    path = tmp_path / "a.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"a\.json"):
        aws.read([path])


def test_an_empty_history_has_no_offers(tmp_path: Path) -> None:
    """An empty history, as of a region without the instance, has no offers."""
    assert aws.read([write(tmp_path / "a.json")]) == ()


def test_the_examples_are_read() -> None:
    """The examples have V100 prices in four zones.

    Each zone's first change is in or before March 2020.
    """
    offers = aws.read(sorted(EXAMPLES.glob("aws/cost/*/*p3.2xlarge.json")))
    assert len(offers) == 4
    assert all(o.spot is not None and o.spot.times_s[0] < 1585000000 for o in offers)
