"""Tables of the costs of drawn stages, and the blocks that are shared out by them, equal to those in stage_tables.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

from pathlib import Path
from random import Random

import numpy as np

from hocket.planning.mesh.block_costs import BlockFigures
from hocket.planning.predict.stage_table import counts_of, rows_of
from tests.kept import check

TABLES = 40
BLOCKS = 9


class Drawn(BlockFigures):
    """Figures of drawn layers: each further recompute setting takes longer and saves less for the backward."""

    def __init__(self, draw: Random, ways: int) -> None:
        stash = [[draw.uniform(1, 3), draw.uniform(4, 9), draw.uniform(1, 3)]]
        working = [[draw.uniform(0, 2), draw.uniform(0, 3), draw.uniform(0, 12)]]
        for _ in range(ways - 1):
            shares = [draw.uniform(0.2, 0.9) for _ in range(3)]
            working.append([draw.uniform(0, 2), working[-1][1] + draw.uniform(0, 9), working[-1][2]])
            stash.append([a * share for a, share in zip(stash[-1], shares, strict=True)])
        self.block_s = np.cumsum([[draw.uniform(0.5, 2)] for _ in range(ways)], axis=0)
        self.stash, self.working = np.array(stash), np.array(working)
        for name in ("kept", "weights", "optimizer", "gradients"):
            setattr(self, name, np.array([draw.uniform(0.5, 3) for _ in range(3)]))
        self.border, self.blocks = draw.uniform(0.0, 2.0), BLOCKS


def test_stage_tables(update_golden: bool) -> None:
    """Seconds, settings and recomputed blocks of each number of blocks, with much memory and with little."""
    lines = []
    for seed in range(TABLES):
        draw = Random(f"table {seed}")
        ways, count = draw.randint(1, 3), draw.randint(1, 4)
        of = Drawn(draw, ways)
        stages = np.array(
            [
                [
                    draw.randint(1, 8),
                    draw.randint(1, 5),
                    draw.choice((0, 1)),
                    draw.choice((40.0, 100.0, 200.0, 400.0)) * draw.uniform(0.8, 1.2),
                    draw.choice((1, 2, 4)),
                    draw.choice((0, 1)),
                    draw.choice((0, 1)),
                    float(s == 0),
                    float(s == count - 1),
                    draw.uniform(0, 1),
                    *(seconds * draw.uniform(0.9, 1.1) for seconds in of.block_s[:, 0]),
                ]
                for s in range(count)
            ]
        )
        rows = rows_of(of, stages, BLOCKS)
        shared = counts_of(rows, BLOCKS, draw.choice((1, 2)))
        lines.append(f"{seed}: {ways} settings, {None if shared is None else shared.tolist()}")
        for row in rows:
            seconds = " ".join(f"{one:.9g}" for one in row.exact_s)
            lines.append(f"  {seconds}; {row.seconds[np.isfinite(row.seconds)].sum():.9g}")
            lines.append(f"  {row.quick.tolist()} {row.thrifty.tolist()} {row.counts.tolist()}")
    check(Path(__file__).with_name("stage_tables.txt"), "\n".join(lines) + "\n", update_golden)
