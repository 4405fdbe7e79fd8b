"""SkyPilot's catalogs."""

from math import isnan
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import catalogue

HEAD = "InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone\n"
INFO = "\"{'Gpus': [{'Name': 'V100', 'Count': 4.0}]}\""
ROW = f"p3.8xlarge,V100,4.0,32,244,{INFO},12.24,3.672,us-east-1,us-east-1b\n"


def write(path: Path, *rows: str, head: str = HEAD) -> Path:
    """One version of a catalog."""
    path.write_text(head + "".join(rows))
    return path


def test_a_row_has_both_prices(tmp_path: Path) -> None:
    """A row has on-demand and spot prices of an instance with several accelerators.

    Rows without an accelerator are ignored.
    """
    path = write(tmp_path / "v.csv", ROW, "m5.large,,,2,8,,0.096,0.03,us-east-1,us-east-1b\n")
    (offer,) = catalogue.read([(path, 100.0)], "aws")
    assert offer.key == ("aws", "us-east-1", "us-east-1b", "p3.8xlarge")
    assert (offer.accelerator, offer.accelerators) == ("v100", 4.0)
    assert offer.price(100.0) == pytest.approx(0.918)
    assert offer.price(100.0, spot=False) == pytest.approx(3.06)


def test_columns_stand_in_any_order_and_zones_may_be_missing(tmp_path: Path) -> None:
    """Columns may be in any order, and zones may be missing.

    Accelerators without a machine get a name. A missing spot price means no spot market. Fractions of an
    accelerator are valid.
    """
    head = "Region,SpotPrice,Price,AcceleratorCount,AcceleratorName,InstanceType\n"
    path = write(tmp_path / "v.csv", "us-central1,,2.48,1,V100,\n", "eu,0.1,0.4,0.167,A10,NV6ads\n", head=head)
    part, whole = catalogue.read([(path, 0.0)], "gcp")
    assert whole.key == ("gcp", "us-central1", "", "1xv100")
    assert whole.spot is None
    assert part.price(0.0, spot=False) == pytest.approx(0.4 / 0.167)


@pytest.mark.parametrize("price", ["", "0", "0.0", "0.00"])
def test_a_price_of_nothing_is_none(tmp_path: Path, price: str) -> None:
    """An empty price, or 0.00, means no price.

    Offers that exist only as spot instances have no on-demand price.
    """
    (offer,) = catalogue.read([(write(tmp_path / "v.csv", ROW.replace("3.672", price)), 0.0)], "vast")
    assert offer.spot is None
    assert offer.price(0.0, spot=False) == pytest.approx(3.06)
    (offer,) = catalogue.read([(write(tmp_path / "v.csv", ROW.replace("12.24", price)), 0.0)], "verda")
    assert offer.on_demand is None


def test_versions_make_series(tmp_path: Path) -> None:
    """Versions form series in time order; a removed offer is not on sale any more."""
    first = write(tmp_path / "a.csv", ROW)
    second = write(tmp_path / "b.csv", ROW.replace("3.672", "4.0").replace("us-east-1b", "us-east-1c"))
    third = write(tmp_path / "c.csv", ROW.replace("3.672", "5.0"))
    offers = catalogue.read([(third, 30.0), (first, 10.0), (second, 20.0)], "aws")
    b = offers[0].spot
    assert b is not None
    assert b.values[0] == 3.672
    assert isnan(b.at(25.0))
    assert b.at(30.0) == 5.0


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (ROW.replace("3.672", "-3"), "line 2: SpotPrice"),
        (ROW.replace("12.24", "inf"), "line 2: Price"),
        (ROW.replace(",4.0,", ",0,"), "line 2: AcceleratorCount"),
        (ROW.replace("us-east-1,", ","), "line 2: Region"),
        (ROW + ROW.replace("3.672", "3.7"), "line 3: found another offer"),
        (ROW + "p3.8xlarge\n", "line 3: found 1 fields"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, row: str, place: str) -> None:
    """Errors name the field and the line; a duplicate row is valid."""
    path = write(tmp_path / "v.csv", row)
    with pytest.raises(InputError, match=place):
        catalogue.read([(path, 0.0)], "aws")
    assert len(catalogue.read([(write(path, ROW, ROW), 0.0)], "aws")) == 1


def test_versions_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    """Contradicting versions are refused.

    Examples are two versions of one time, and different accelerators of one instance. A missing column is refused
    as well.
    """
    first = write(tmp_path / "a.csv", ROW)
    with pytest.raises(InputError, match="one catalog version for each time"):
        catalogue.read([(first, 1.0), (first, 1.0)], "aws")
    other = write(tmp_path / "b.csv", ROW.replace(",4.0,", ",8.0,"))
    with pytest.raises(InputError, match="8 v100"):
        catalogue.read([(first, 1.0), (other, 2.0)], "aws")
    with pytest.raises(InputError, match="a column 'SpotPrice'"):
        catalogue.read([(write(tmp_path / "c.csv", head=HEAD.replace("SpotPrice,", "")), 1.0)], "aws")


def test_prices_may_have_been_computed(tmp_path: Path) -> None:
    """Prices may have many decimals."""
    path = write(tmp_path / "v.csv", ROW.replace("3.672", "0.30000000000000004"))
    (offer,) = catalogue.read([(path, 0.0)], "aws")
    assert offer.price(0.0) == pytest.approx(0.075)
