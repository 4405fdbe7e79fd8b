"""Small markets for tests."""

from hocket.scheduler.prices.market import Market, Offer, PriceKey
from hocket.scheduler.prices.series import Series

HOUR = 3600.0


def key(cloud: str, zone: str, instance: str) -> PriceKey:
    """A key in the region of a zone; the region's name lacks the zone's last letter."""
    return PriceKey(cloud, zone[:-1], zone, instance)


BIG, SMALL, FAR, OTHER = (
    key("aws", "us-east-1a", "p3.8xlarge"),
    key("aws", "us-east-1b", "p3.2xlarge"),
    key("aws", "us-west-2a", "p3.2xlarge"),
    key("azure", "us-easta", "NC6"),
)


def market() -> Market:
    """A market of four offers.

    Four V100s for 4 dollars an hour, one for 3 and later for 0.5, one far away for 2, and one K80 for 0.3.
    """
    return Market(
        (
            Offer(BIG, "v100", 4, spot=Series.constant(4.0), on_demand=Series.constant(12.0)),
            Offer(SMALL, "v100", 1, spot=Series((0.0, 10 * HOUR), (3.0, 0.5))),
            Offer(FAR, "v100", 1, spot=Series.constant(2.0)),
            Offer(OTHER, "k80", 1, spot=Series.constant(0.3)),
        )
    )
