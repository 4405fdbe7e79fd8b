"""Savings of dynamic pricing.

These are Figures 6.5 and 6.6 of Narayanan's dissertation. The analysis is for one job with one accelerator. Job
lengths are in days on a V100. Sources of variation are added cumulatively: accelerator type, multi-accelerator
instances, (beyond the dissertation) regions, clouds, and moving once a day. Costs are means over possible start days.
Reductions are relative to the cost of the first stage.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hocket.scheduler.prices.analysis.rows import US, PriceFigure
from hocket.scheduler.prices.market import Market, Offer
from hocket.scheduler.prices.migration import DAY_S, Migration, Moving, travel

# Eleven models and batch sizes, as in the public analysis.
MODELS = (
    "A3C", "CycleGAN", "LM (batch size 40)", "LM (batch size 80)", "Recommendation (batch size 8192)",
    "ResNet-18 (batch size 16)", "ResNet-18 (batch size 256)", "ResNet-50 (batch size 128)", "ResNet-50 (batch size 16)",
    "Transformer (batch size 16)", "Transformer (batch size 256)",
)  # fmt: skip
FIRST_BEGIN_S, BEGINS = 1581984000.0, 30  # 18 February 2020, and the 29 days after it: as in the public analysis
AZURE_BEGINS_S = 1582502400.0  # 24 February 2020: first day with Azure's prices
# Dollars of each stage for A3C in the public analysis (notebooks/single_job_cost_analysis.ipynb, commit 85f6595).
PUBLISHED_A3C_USD = (95.52, 72.20, 55.73, 30.78, 27.08)


STAY = Moving()
ONCE_A_DAY = Moving(every_s=DAY_S)


@dataclass(frozen=True)
class VariationSource:
    """Source of price variation, which a stage of the analysis adds.

    Attributes:
        name: label of the stage.
        takes: predicate of the offers that the job may use in this stage.
        moving: settings for moves of the job.
    """

    name: str
    takes: Callable[[Offer], bool]
    moving: Moving = STAY


def _aws(o: Offer) -> bool:
    return o.key[:2] == ("aws", "us-east-1")


def _us(o: Offer) -> bool:
    return o.key.region.startswith(US)


PAPER = (
    VariationSource("1 v100", lambda o: _aws(o) and (o.accelerator, o.accelerators) == ("v100", 1)),
    VariationSource("+ GPU type", lambda o: _aws(o) and o.accelerators == 1),
    VariationSource("+ multi-GPU", _aws),
    VariationSource("+ multi-cloud", lambda o: _aws(o) or o.key.cloud == "azure"),
    VariationSource("+ dynamic", lambda o: _aws(o) or o.key.cloud == "azure", ONCE_A_DAY),
)
# Beyond the dissertation: zones and regions as separate sources, all of the US, and Google, where prices are constant.
WIDE = (
    VariationSource(
        "1 v100 in us-east-1d", lambda o: o.key.zone == "us-east-1d" and (o.accelerator, o.accelerators) == ("v100", 1)
    ),
    VariationSource("+ zone", PAPER[0].takes),
    VariationSource("+ GPU type", PAPER[1].takes),
    VariationSource("+ multi-GPU", PAPER[2].takes),
    VariationSource("+ region (US)", lambda o: _us(o) and o.key.cloud == "aws"),
    VariationSource("+ Azure", lambda o: _us(o) and o.key.cloud in ("aws", "azure")),
    VariationSource("+ Google", _us),
    VariationSource("+ dynamic", _us, ONCE_A_DAY),
)


def begins(first_s: float = FIRST_BEGIN_S, count: int = BEGINS) -> tuple[float, ...]:
    """Start times of a job on consecutive days, in seconds since 1970."""
    return tuple(first_s + DAY_S * day for day in range(count))


def journeys(
    market: Market, speed: Mapping[str, float], days: float, stage: VariationSource, begins_s: Iterable[float]
) -> tuple[Migration, ...]:
    """Migrations of a job from each start day.

    Arguments:
        market: offers with their price series.
        speed: steps per second of the job, by accelerator.
        days: length of the job, in days on a V100.
        stage: offers that the job may use, and when it may move.
        begins_s: start times, in seconds since 1970.
    """
    own = market.where(stage.takes)
    steps = days * DAY_S * speed["v100"]
    return tuple(travel(own, speed, steps, begin, stage.moving) for begin in begins_s)


def cost_reduction(
    market: Market,
    throughputs: Mapping[str, Mapping[str, float]],
    stages: Sequence[VariationSource] = PAPER,
    begins_s: Sequence[float] = begins(),
    days: float = 4.0,
    models: Sequence[str] = MODELS,
) -> tuple[PriceFigure, ...]:
    """Figure 6.5: cost reduction of each stage relative to the first stage.

    Arguments:
        throughputs: steps per second, by model and accelerator.
        days: length of the job, in days on a V100.
    """
    rows = []
    for model in models:
        first = 0.0
        for k, stage in enumerate(stages):
            found = journeys(market, throughputs[model], days, stage, begins_s)
            cost = float(np.mean([one.cost_usd for one in found]))
            first = first or cost
            known = model == "A3C" and days == 4.0 and stages is PAPER and tuple(begins_s) == begins()
            published = PUBLISHED_A3C_USD[0] / PUBLISHED_A3C_USD[k] if known else None
            note = f"{cost:.2f} dollars" + (f", {PUBLISHED_A3C_USD[k]:.2f} in the public analysis" if known else "")
            rows.append(
                PriceFigure("Figure 6.5", (model, stage.name), first / cost, published and round(published, 2), note)
            )
    return tuple(rows)


def duration_effect(
    market: Market,
    throughputs: Mapping[str, Mapping[str, float]],
    stages: tuple[VariationSource, VariationSource] = (PAPER[3], PAPER[4]),
    begins_s: Sequence[float] = begins(),
    days: Sequence[float] = (1.0, 2.0, 4.0, 8.0, 16.0),
    models: Sequence[str] = MODELS,
) -> tuple[PriceFigure, ...]:
    """Figure 6.6: savings of moving against staying, by job length.

    Without moves, the job stays at the place that is best at the start.

    Arguments:
        throughputs: steps per second, by model and accelerator.
        stages: stage without moves, and stage with moves.
        days: lengths of the job, in days on a V100.
    """
    rows = []
    for model in models:
        for length in days:
            stay, move = (journeys(market, throughputs[model], length, stage, begins_s) for stage in stages)
            ratio = sum(one.cost_usd for one in stay) / sum(one.cost_usd for one in move)
            most = max(one.moves for one in move)
            mean = np.mean([one.moves for one in move])
            rows.append(
                PriceFigure("Figure 6.6", (model, f"{length:g} days"), ratio, None, f"{mean:.1f} moves, most {most}")
            )
    return tuple(rows)


def with_moving(stage: VariationSource, moving: Moving) -> VariationSource:
    """Stage with other settings for moves, such as costly checkpoints or rarer checks."""
    return replace(stage, moving=moving)
