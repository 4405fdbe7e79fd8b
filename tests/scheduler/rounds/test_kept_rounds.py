"""Placements and choices of drawn rounds, equal to those that are kept in rounds.txt.

After a change that is meant, write the file again with --update-golden, and read the difference.
"""

import random
from pathlib import Path

import numpy as np

from hocket.scheduler.model.allocation import ALONE
from hocket.scheduler.rounds.knapsack import pack
from hocket.scheduler.rounds.placement import place, place_singles
from hocket.scheduler.rounds.priorities import (
    Entries,
    balanced,
    by_debt,
    by_delay,
    by_ratio,
    choose,
    choose_by_type,
    enough,
    worth,
)
from tests.kept import check

TASKS = 40


def placements(draw: random.Random) -> list[str]:
    """Jobs that want one or more workers, some of which held workers that are still up, or no longer."""
    per_server = draw.choice((1, 2, 4))
    count = draw.choice((6, 9, 16))
    up = sorted(draw.sample(range(count), draw.randint(count // 2, count)))
    before, left, wishes = draw.sample(range(count), count), len(up), []
    while left > 0 and len(wishes) < 9:
        need = draw.choice((1, 1, 2, 3, per_server))
        if need > left:
            break
        left -= need
        own = tuple(sorted(before[:need])) if draw.random() < 0.7 else ()
        before = before[len(own) :]
        wishes.append((need, draw.random() < 0.3, own))
    lines = [f"  {per_server} a server, {up}"]
    lines += [f"    {wish} on {given}" for wish, given in zip(wishes, place(wishes, up, per_server), strict=True)]
    taken = draw.sample(up, len(up) // 3)
    return [*lines, f"    singles beside {taken}: {place_singles((len(up) - len(taken)) // 2, taken, up, per_server)}"]


def entries(draw: random.Random, single: bool) -> Entries:
    """Entries of a few jobs and pairs on two types, in the order of the ledger."""
    jobs = draw.randint(2, 8)
    scale = [1 if single else draw.choice((1, 1, 2, 3)) for _ in range(jobs)]
    found = []
    for job in range(jobs):
        mates = [other for other in range(job + 1, jobs) if scale[other] == scale[job]]
        for column in range(2):
            if draw.random() < 0.8:
                found.append((job, ALONE, column, scale[job], draw.choice((0.0, draw.uniform(0.1, 1.0)))))
        if mates and not single and draw.random() < 0.5:
            found.append((job, draw.choice(mates), draw.randrange(2), scale[job], draw.uniform(0.1, 1.0)))
    found = found or [(0, ALONE, 0, scale[0], 0.5)]
    first, second, column, need, fraction = (np.array(row) for row in zip(*found, strict=True))
    return Entries(first, second, column, column, need, fraction.astype(float), jobs)


def choices(draw: random.Random) -> list[str]:
    """Orders of the entries, and what is chosen of each order."""
    own = entries(draw, draw.random() < 0.4)
    received = np.array([draw.uniform(50, 1000) for _ in range(len(own))])
    owed = np.array([draw.choice((0.0, draw.uniform(-200, 800), draw.uniform(0, 800))) for _ in range(len(own))])
    workers = [draw.randint(0, 4), draw.randint(1, 4)]
    lines = [f"  {own.first} {own.second} {own.column} {own.need} workers {workers} single {own.single}"]
    for order in (by_ratio, by_debt, by_delay):
        ranked = order(own, received, owed)
        chosen = choose(own, ranked, workers)
        lines.append(f"    {order.__name__} {ranked.tolist()}: {chosen.tolist()} {balanced(own, chosen, owed)}")
    for types in ([0, 1], [1, 0]):
        lines.append(f"    queues {types}: {choose_by_type(own, received, owed, workers, types).tolist()}")
    each = worth(own, owed)
    target = enough(own, each)
    found = pack(own, each, workers, target)
    gained = None if found is None else f"{each[found].sum():.6g}"
    return [*lines, f"    worth {np.round(each, 3).tolist()}, enough {target:.6g}, packed {gained is not None}"]


def test_rounds(update_golden: bool) -> None:
    """Who runs in a round, and on which workers."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        lines += [f"{seed}:", *placements(draw), *choices(draw)]
    check(Path(__file__).with_name("rounds.txt"), "\n".join(lines) + "\n", update_golden)
