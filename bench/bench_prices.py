"""Analysis of chapter 6, computed from a folder of prices and compared with the published figures.

    python -m bench.bench_prices FOLDER     # layout of the published data, see docs/explanation/prices.md

Without a folder, the published data beside the repository are used. If they are missing, nothing is computed.
"""

import sys
from pathlib import Path

from hocket.scheduler.prices.analysis import figures, reductions
from hocket.scheduler.prices.analysis.rows import text
from hocket.scheduler.prices.migration import Moving
from hocket.scheduler.prices.readers import public, throughputs

BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data" / "prices"

WAYS = (
    ("once a day", reductions.ONCE_A_DAY),
    ("once an hour", Moving(3600.0)),
    ("once a day, 1 GB and 10 minutes a move", Moving(reductions.DAY_S, 1e9, 600.0)),
)


def main() -> None:
    """Print all tables and figures."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else BESIDE
    if not folder.is_dir():
        print(f"No folder of prices at {folder}: nothing to compute.")
        return
    market = public.read_market(folder)
    steps = throughputs.read(folder / "oracle_throughputs.json")
    first, last = reductions.AZURE_BEGINS_S, reductions.begins()[-1]
    both = reductions.begins(reductions.AZURE_BEGINS_S, 24)
    v100 = min(min(o.spot.values) for o in market.where(reductions.PAPER[0].takes) if o.spot)
    parts = (
        figures.normalised_throughput(steps),
        figures.transfer_share(v100),
        figures.spot_reduction(market),
        figures.availability(public.read_availability(folder)),
        figures.price_ranges(market, first, last),
        figures.per_accelerator(market, "us-east-1", reductions.FIRST_BEGIN_S - 30 * reductions.DAY_S, last),
        reductions.cost_reduction(market, steps),
        reductions.duration_effect(market, steps),
    )
    print("".join(text(rows) for rows in parts), end="")
    print("\nOnly days of which Azure's prices are known")
    print(text(reductions.cost_reduction(market, steps, reductions.PAPER, both)), end="")
    print(text(reductions.duration_effect(market, steps, begins_s=both)), end="")
    print("\nWays to move, on the same days: largest and mean reduction of all models, most moves")
    for name, moving in WAYS:
        stages = (reductions.PAPER[3], reductions.with_moving(reductions.PAPER[4], moving))
        for days in (1.0, 4.0, 16.0):
            rows = reductions.duration_effect(market, steps, stages, both, (days,))
            most = max(int(row.note.split()[-1]) for row in rows)
            values = [row.value for row in rows]
            print(f"  {name:<44} {days:4g} days {max(values):7.3f} {sum(values) / len(values):7.3f} {most:3d}")
    print("\nAll of the US, three clouds")
    print(text(reductions.cost_reduction(market, steps, reductions.WIDE, both)), end="")


if __name__ == "__main__":
    main()
