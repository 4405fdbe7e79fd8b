"""A whole folder of published prices."""

from pathlib import Path

import pytest

from hocket.cluster.price_readers import public
from hocket.errors import InputError
from tests.cluster.prices import public as published


def test_the_examples_in_the_package_are_a_market() -> None:
    """Three clouds, in one folder, with a price of the moment for each."""
    market = public.read_market(published.EXAMPLES)
    assert {o.key.cloud for o in market} == {"aws", "azure", "gcp"}
    assert all(o.price(1584900000.0) > 0 for o in market)
    assert public.read_availability(published.EXAMPLES) == ()
    assert (published.EXAMPLES / "ORIGIN.md").is_file()


def test_the_published_folder_has_159_offers() -> None:
    """Of AWS in six regions, Azure in three and Google in four zones; histories that overlap agree."""
    market = published.market()
    assert len(market.offers) == 159
    assert len({o.key.region for o in market if o.key.cloud == "aws"}) == 6


def test_a_folder_without_prices_is_refused(tmp_path: Path) -> None:
    """And one that is not there."""
    with pytest.raises(InputError, match="no prices"):
        public.read_market(tmp_path)
    with pytest.raises(InputError, match="no folder"):
        public.read_market(tmp_path / "none")
