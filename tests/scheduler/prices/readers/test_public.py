"""A whole folder of published prices."""

from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.scheduler.prices.readers import public
from tests.scheduler.helpers import public_prices as published


def test_the_examples_in_the_package_are_a_market() -> None:
    """The packaged examples are a market of three clouds with current prices."""
    market = public.read_market(published.EXAMPLES)
    assert {o.key.cloud for o in market} == {"aws", "azure", "gcp"}
    assert all(o.price(1584900000.0) > 0 for o in market)
    assert public.read_availability(published.EXAMPLES) == ()
    assert (published.EXAMPLES / "ORIGIN.md").is_file()


def test_the_published_folder_has_159_offers() -> None:
    """The published folder has 159 offers, and overlapping histories agree.

    They are of AWS in six regions, Azure in three and Google in four zones.
    """
    market = published.market()
    assert len(market.offers) == 159
    assert len({o.key.region for o in market if o.key.cloud == "aws"}) == 6


def test_a_folder_without_prices_is_refused(tmp_path: Path) -> None:
    """A folder without prices, and a missing folder, are refused."""
    with pytest.raises(InputError, match="no prices"):
        public.read_market(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        public.read_market(tmp_path / "none")


def test_catalogues_and_traces_lie_beside_them(tmp_path: Path) -> None:
    """Catalog versions and spot traces in the folder are read."""
    catalogues, traces = tmp_path / "skypilot" / "aws", tmp_path / "spot-traces" / "availability" / "1-node"
    catalogues.mkdir(parents=True)
    head = "InstanceType,AcceleratorName,AcceleratorCount,Price,SpotPrice,Region,AvailabilityZone\n"
    for day, price in (("2022-10-26", 0.9), ("2022-10-27", 1.0)):
        row = f"p3.2xlarge,V100,1,3.06,{price},us-west-2,us-west-2a\n"
        (catalogues / f"{day}T00:00:00Z.csv").write_text(head + row)
    (traces / "aws-10-26-2022").mkdir(parents=True)
    (traces / "aws-10-26-2022" / "us-west-2a_v100_1.json").write_text(
        '{"metadata": {"gap_seconds": 600}, "data": [1, 0]}'
    )
    [offer] = public.read_market(tmp_path)
    [(name, [trace])] = public.read_availability(tmp_path)
    assert trace.key == offer.key
    assert name == "aws-10-26-2022/us-west-2a_v100_1.json"
    assert [offer.price(trace.begin_s + hours * 3600.0) for hours in (0.0, 24.0)] == [0.9, 1.0]
    (catalogues / "today.csv").write_text(head)
    with pytest.raises(InputError, match=r"today.csv: name"):
        public.read_market(tmp_path)
