"""Figures of drawn clusters, links and contention, equal to those that are kept in clusters.txt and links.txt.

After a change that is meant, write them again with --update-golden, and read the difference.
"""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.errors import InputError
from hocket.hardware.change import Change
from hocket.hardware.cluster import Cluster
from hocket.hardware.groups import grouped
from hocket.hardware.links import (
    ALL_REDUCE,
    MEMBERS,
    POINT_TO_POINT,
    LinkSample,
    collective_cores,
    fit_samples,
    transfer_cores,
    with_fits,
)
from hocket.hardware.parts import parts, usd_per_hour
from tests.drawn import cluster, overlap
from tests.kept import check

TASKS = 14


def _groups(draw: random.Random, there: Cluster) -> list[str]:
    lines = []
    for width in (2, 3, 4):
        try:
            found = grouped(there, width, slices=draw.random() < 0.5)
        except InputError as error:
            lines.append(f"  groups of {width}: {error}")
            continue
        size_bytes = draw.uniform(1e3, 1e8)
        seconds = f"{found.all_reduce_s(size_bytes):.9g} {found.gather_s(size_bytes):.9g}"
        lines.append(f"  groups of {width}: {seconds} {found.cluster.levels} {found.cluster.nodes}")
    return lines


def _samples(draw: random.Random) -> list[LinkSample]:
    """Messages and all-reduces of known links, each off by up to 10 %."""
    found = []
    for level in range(2):
        latency_s, per_byte_s = draw.uniform(1e-5, 1e-4), 1 / draw.uniform(1e8, 1e10)
        for kind, members in ((POINT_TO_POINT, 2), (ALL_REDUCE, 4), (MEMBERS, 2)):
            for size_bytes in (64, 4096, 65536, 1 << 20, 8 << 20):
                steps = 1 if kind == POINT_TO_POINT else 2 * (members - 1)
                share = 1.0 if kind == POINT_TO_POINT else 1 / members
                seconds = steps * (latency_s + size_bytes * share * per_byte_s) * draw.uniform(0.95, 1.1)
                found.append(LinkSample(level, kind, members, size_bytes, seconds, draw.uniform(0, 1.5)))
    return found


def _contention(draw: random.Random) -> list[str]:
    lines, found = [], overlap(draw, draw.choice((2, 3, 8)))
    for model in (found, found.on(5), found.scaled(0.5, 2.0), found.without_contention()):
        size_bytes, computes_s, threads = draw.uniform(1e3, 1e8), draw.uniform(1e-4, 1e-1), draw.uniform(1, 12)
        figures = (
            model.computation_s(computes_s, threads),
            model.beside_s(size_bytes, threads),
            model.alone_s(size_bytes, threads),
            model.carried_bytes(size_bytes),
            model.share(threads),
            model.backward_s([size_bytes, size_bytes / 3, 0.0], [computes_s] * 3, [threads, 1.0, 2.0]),
        )
        stage = model.overlapped(size_bytes, computes_s, threads)
        lines.append(f"  contention: {[f'{figure:.9g}' for figure in figures]} {stage} usable {model.usable}")
    return lines


@pytest.mark.parametrize("name", ["clusters", "links"])
def test_figures(name: str, update_golden: bool) -> None:
    """Groups, changes, sub-clusters and prices; fits of links, and computation beside all-reduces."""
    lines = []
    for seed in range(TASKS):
        draw = random.Random(seed)
        if name == "links":
            samples = _samples(draw)
            fits = fit_samples(samples)
            lines.append(f"{seed}: {transfer_cores(samples):.9g} {collective_cores(samples, 2)}")
            lines += [f"  {key}: {fit}" for key, fit in sorted(fits.items())]
            lines += [f"  {level}" for level in with_fits(cluster(draw, (2, 2)).levels, fits)]
            lines += _contention(draw)
            continue
        there = cluster(draw)
        pairs = [tuple(sorted(draw.sample(range(there.devices), 2))) for _ in range(4)]
        links = [f"{pair} level {there.level_between(*pair)} {there.link_between(*pair)}" for pair in pairs]
        lines.append(f"{seed}: {there.devices} devices, {'; '.join(links)}")
        lines += _groups(draw, there)
        change = Change(devices=draw.choice((0, 2, 4)), rate=draw.choice((1.0, 2.0)), memory=draw.choice((1.0, 0.5)))
        for altered in (change, replace(change, bandwidth={"level 0": 2.0}, latency={"level 0": 0.5})):
            try:
                lines.append(f"  {altered}: {altered.of(there)}")
            except InputError as error:
                lines.append(f"  {altered}: {error}")
        priced = replace(there, price_usd_per_hour=2.48)
        lines += [f"  part: {one.devices} {one.usd_per_hour} {one.cluster.levels}" for one in parts(priced)]
        lines.append(f"  {usd_per_hour(priced)} $/h")
    check(Path(__file__).with_name(f"{name}.txt"), "\n".join(lines) + "\n", update_golden)
