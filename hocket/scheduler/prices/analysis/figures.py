"""Price figures.

These are Tables 6.1 to 6.3 and Figures 6.2 to 6.4 of Narayanan's dissertation. They are recomputed from a market.
Each function returns rows; docs/explanation/prices.md explains the differences from the published figures.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import nan

import numpy as np

from hocket.scheduler.prices.analysis.rows import US, PriceFigure
from hocket.scheduler.prices.availability import Availability
from hocket.scheduler.prices.egress import GB, move_usd
from hocket.scheduler.prices.market import Market, Offer, PriceKey

# On-demand dollars per hour of an instance with one accelerator, in February 2020. AWS: the cap of its spot prices in
# the eastern US. Azure: list prices. Google: prices of the public analysis, with the attached cores and memory.
ON_DEMAND = {
    ("aws", "us-east-1"): {"k80": 0.90, "v100": 3.06},
    ("azure", "us-east"): {"k80": 0.90, "p100": 2.07, "v100": 3.06},
    ("gcp", "us-west1"): {"k80": 0.52, "p100": 1.68, "v100": 2.85},
}
_REDUCTIONS = {
    ("aws", "k80"): 2.7, ("aws", "v100"): 3.3, ("gcp", "k80"): 3.4, ("gcp", "p100"): 3.4, ("gcp", "v100"): 3.3,
    ("azure", "k80"): 7.3, ("azure", "p100"): 8.0, ("azure", "v100"): 5.1,
}  # fmt: skip
_NORMALISED = {
    "Transformer (batch size 256)": ((3.3, 3.3), (1.0, 0.8)),
    "A3C": ((1.2, 2.2), (0.4, 0.4)),
    "CycleGAN": ((4.5, 9.3), (1.4, 1.7)),
    "ResNet-18 (batch size 256)": ((4.0, 6.8), (1.2, 1.2)),
    "ResNet-50 (batch size 128)": ((3.7, 9.6), (1.1, 1.8)),
}


def normalised_throughput(
    throughputs: Mapping[str, Mapping[str, float]], on_demand: Mapping[str, float] = ON_DEMAND["gcp", "us-west1"]
) -> tuple[PriceFigure, ...]:
    """Table 6.1: throughput, and throughput per dollar, relative to K80.

    Arguments:
        throughputs: steps per second, by model and accelerator.
        on_demand: dollars per hour, by accelerator.
    """
    rows = []
    for model, (published, published_dollar) in _NORMALISED.items():
        steps = throughputs.get(model, {})
        if not {"k80", "p100", "v100"} <= steps.keys():
            continue
        for k, kind in enumerate(("p100", "v100")):
            ratio = steps[kind] / steps["k80"]
            dollar = ratio * on_demand["k80"] / on_demand[kind]
            rows.append(PriceFigure("Table 6.1", (model, kind, "throughput"), ratio, published[k]))
            rows.append(PriceFigure("Table 6.1", (model, kind, "for a dollar"), dollar, published_dollar[k]))
    return tuple(rows)


def transfer_share(spot_v100_usd_per_hour: float, hours: float = 160.0) -> tuple[PriceFigure, ...]:
    """Table 6.2: cost of one transfer, in percent of the training cost.

    Transfers are of a data set or a model.

    Arguments:
        hours: duration of the training on a V100.
    """
    compute = spot_v100_usd_per_hour * hours
    here, there = PriceKey("aws", "us-east-1", "", ""), PriceKey("azure", "us-east", "", "")
    known = (("ResNet-50", 150.0, 0.098, 9.13, 0.006), ("BERT-Base", 17.0, 0.408, 0.98, 0.025))
    rows = []
    for name, data_gb, model_gb, data_share, model_share in known:
        many = 10_000  # as the authors did, because the first gigabyte of a month is free and models are smaller
        data = move_usd(data_gb * GB, here, there) / compute * 100
        model = move_usd(model_gb * GB * many, here, there) / many / compute * 100
        rows.append(PriceFigure("Table 6.2", (name, "data set", "percent"), data, data_share))
        rows.append(PriceFigure("Table 6.2", (name, "model", "percent"), model, model_share))
    return tuple(rows)


def spot_reduction(
    market: Market, on_demand: Mapping[tuple[str, str], Mapping[str, float]] = ON_DEMAND
) -> tuple[PriceFigure, ...]:
    """Table 6.3: on-demand price over the lowest spot price.

    Only instances with one accelerator count.

    Arguments:
        on_demand: dollars per hour by accelerator, for each (cloud, region).
    """
    rows = []
    for (cloud, region), prices in on_demand.items():
        for kind, price in prices.items():
            places = [
                o for o in market if o.key[:2] == (cloud, region) and (o.accelerator, o.accelerators) == (kind, 1)
            ]
            lowest = min((v for o in places if o.spot for v in o.spot.values if v == v), default=nan)
            if lowest == lowest:
                rows.append(
                    PriceFigure("Table 6.3", (cloud, region, kind), price / lowest, _REDUCTIONS.get((cloud, kind)))
                )
    return tuple(rows)


def availability(logs: Iterable[tuple[str, Sequence[Availability]]]) -> tuple[PriceFigure, ...]:
    """Figure 6.2 in numbers: fraction of time available, hours to preemption."""
    rows = []
    for _, found in logs:
        for one in found:
            if not one.held:
                continue
            what = (str(one.key), f"{one.accelerators:g} {one.accelerator}")
            longest = max(h.end_s - h.begin_s for h in one.held) / 3600
            note = f"{one.preemptions} preemptions, longest {longest:.1f} h"
            rows.append(PriceFigure("Figure 6.2", (*what, "part of the time"), one.fraction, None, note))
            rows.append(PriceFigure("Figure 6.2", (*what, "hours to preemption"), one.mean_s_to_preemption / 3600))
    return tuple(rows)


def price_ranges(market: Market, begin_s: float, end_s: float, every_s: float = 86400.0) -> tuple[PriceFigure, ...]:
    """Figure 6.3: lowest and highest US spot price of an instance.

    Rows are by cloud, accelerator and number of accelerators. Values are means over days of the daily minimum and
    maximum. A note gives the percentage of days on which the cloud was the cheapest.
    """
    days = np.arange(begin_s, end_s, every_s)
    groups: dict[tuple[str, float], dict[str, list[Offer]]] = {}
    for offer in market:
        if offer.spot is not None and offer.key.region.startswith(US):
            kinds = groups.setdefault((offer.accelerator, offer.accelerators), {})
            kinds.setdefault(offer.key.cloud, []).append(offer)
    rows = []
    for (kind, held), clouds in sorted(groups.items()):
        lows, highs = {}, {}
        for cloud, offers in sorted(clouds.items()):
            prices = np.stack([o.spot.on(days) for o in offers if o.spot is not None])
            lows[cloud] = np.where(np.isnan(prices), np.inf, prices).min(0)
            highs[cloud] = np.where(np.isnan(prices), -np.inf, prices).max(0)
        least = np.min(list(lows.values()), axis=0)
        for cloud in lows:
            known = np.isfinite(lows[cloud])
            if not known.any():
                continue
            what = (f"{held:g} {kind}", cloud)
            note = f"cheapest on {100 * (lows[cloud] == least)[known].mean():.0f} % of {int(known.sum())} days"
            rows.append(PriceFigure("Figure 6.3", (*what, "lowest"), float(lows[cloud][known].mean()), None, note))
            rows.append(PriceFigure("Figure 6.3", (*what, "highest"), float(highs[cloud][known].mean())))
    return tuple(rows)


def per_accelerator(market: Market, region: str, begin_s: float, end_s: float) -> tuple[PriceFigure, ...]:
    """Figure 6.4: price per accelerator-hour by instance size, and its variation.

    Prices are means over zones and days. Variation is the mean over zones of the standard deviation over the mean in
    time.
    """
    days = np.arange(begin_s, end_s, 86400.0)
    groups: dict[tuple[str, float], list[np.ndarray]] = {}
    for offer in market:
        if offer.spot is not None and offer.key.region == region:
            prices = offer.spot.on(days) / offer.accelerators
            groups.setdefault((offer.accelerator, offer.accelerators), []).append(prices[~np.isnan(prices)])
    rows = []
    for (kind, held), zones in sorted(groups.items()):
        known = [prices for prices in zones if len(prices)]
        if not known:
            continue
        note = f"{len(known)} zones"
        mean = float(np.concatenate(known).mean())
        varies = 100 * float(np.mean([prices.std() / prices.mean() for prices in known]))
        rows.append(
            PriceFigure("Figure 6.4", (region, f"{held:g} {kind}", "dollars an accelerator-hour"), mean, None, note)
        )
        rows.append(PriceFigure("Figure 6.4", (region, f"{held:g} {kind}", "variation in time, percent"), varies))
    return tuple(rows)
