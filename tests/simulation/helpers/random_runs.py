"""Runs with drawn seconds: brute-force means of iterations with varying compute."""

from dataclasses import replace

import numpy as np

from hocket.program.instruction import Kind
from hocket.simulation.engine.unrolled import Unrolled
from hocket.simulation.result import SimulationResult
from tests.simulation.helpers.chains import Case


def varying(case: Case, share: float) -> Case:
    """The case with a deviation of forward and backward, as a share of their mean."""
    profile = case.costs.profile
    columns = [[share * sum(row) for row in zip(*rows, strict=True)] for rows in (
        [layer.forward_s for layer in profile.layers],
        [layer.backward_s for layer in profile.layers],
    )]  # fmt: skip
    known = replace(profile, whole_forward_std_s=tuple(columns[0]), whole_backward_std_s=tuple(columns[1]))
    return Case(case.program, replace(case.costs, profile=known))


def mean_iteration_s(outcome: SimulationResult, share: float, draws: int = 4000, seed: int = 0) -> float:
    """Mean seconds of a batch over runs with drawn seconds.

    The drawn runs follow the nodes of a simulated run. Links and cores are not shared, every node begins when all
    nodes that it waits for have ended, and microbatches have one sample.
    """
    rng, nodes = np.random.default_rng(seed), Unrolled(outcome.layout, outcome.costs)
    profile = outcome.costs.profile
    whole_s = {
        Kind.FORWARD: sum(layer.forward_s[0] for layer in profile.layers),
        Kind.BACKWARD: sum(layer.backward_s[0] for layer in profile.layers),
    }
    seconds = (outcome.end_s - outcome.start_s).tolist()
    waits = outcome.layout.structure[2].tolist()
    begin: list[np.ndarray | float] = [0.0] * len(waits)
    end: list[np.ndarray | float] = [0.0] * len(waits)
    ready = [n for n, count in enumerate(waits) if count == 0]
    while ready:
        n = ready.pop()
        mean_s, kind = seconds[n], nodes.instruction(n).kind
        if kind in whole_s:  # variance is in proportion to seconds
            deviation_s = share * np.sqrt(whole_s[kind] * mean_s)
            end[n] = begin[n] + rng.normal(mean_s, deviation_s, draws)
        else:
            end[n] = begin[n] + mean_s
        for to in nodes.successors(n):
            begin[to] = np.maximum(begin[to], end[n])
            waits[to] -= 1
            if waits[to] == 0:
                ready.append(to)
    prologue, period, _ = outcome.layout.sizes
    repeats = outcome.layout.repeats
    rounds = [
        np.max([np.broadcast_to(end[prologue + r * period + k], draws) for k in range(period)], axis=0).mean()
        for r in range(repeats)
    ]
    first, last = repeats // 3, repeats - 2
    batches = outcome.program.stride / len(outcome.costs.samples)
    return float(rounds[last] - rounds[first]) / (last - first) / batches
