"""Simulated throughput of two waves on one device, by the share of the device that a wave needs.

    python bench/bench_wave_shares.py

Throughput is relative to data parallelism. The backward pass takes twice as long as the forward pass, and nothing else
takes time. If two waves together need more than the whole device, they slow each other down. With `align: both`, as in
Wavelet, backward passes of the waves wait for each other, and so do forward passes. With `align: forwards`, only
forward passes wait. With `recompute`, there is one stash at a time; data parallelism keeps its stashes in the first
three rows.
"""

from dataclasses import replace

from hocket.cost.model import CostModel
from hocket.hardware.cluster import Cluster, Level
from hocket.profiling.analytic.synthetic import chain
from hocket.profiling.profile import ModelProfile
from hocket.program.passes.borders import StageCut, stage_shapes
from hocket.simulation.simulator import play
from hocket.simulation.steady_state import steady_state
from hocket.strategies.base.strategy import compile_strategy

SHARES = (0.3, 0.5, 0.6, 0.75, 0.9, 1.0)
FORWARD_S, BACKWARD_S = 1.0, 2.0
MICROBATCHES, PERIODS, LARGE = 2, 12, 1000
CLUSTER = Cluster("one", (Level("server", 2, 1e30),), "v100-16gb")


def profile(share: float) -> ModelProfile:
    """Profile of one layer.

    A microbatch of one sample needs `share` of a device; one of 1,000 samples needs all of it.
    """
    plain = chain(
        1,
        forward_s=FORWARD_S,
        backward_s=BACKWARD_S,
        weights_bytes=1.0,
        microbatch_sizes=(1, LARGE),
        device_type=CLUSTER.device_type,
    )
    [layer] = plain.layers
    layer = replace(
        layer,
        forward_s=(FORWARD_S, LARGE * share * FORWARD_S),
        backward_s=(BACKWARD_S, LARGE * share * BACKWARD_S),
        step_s=0.0,
    )
    return replace(plain, layers=(layer,))


def iteration_s(share: float, waves: int, recompute: bool = False, **options: str) -> float:
    """Seconds of an iteration.

    Arguments:
        waves: 1 for data parallelism, or 2.
    """
    found = profile(share)
    cut = StageCut((0,), (0,), recompute, buckets=((0,),))
    cuts = (cut, replace(cut, wave=1))[:waves]
    name = "tick_tock" if waves == 2 else "data_parallel"
    program = compile_strategy(name, stage_shapes(found, cuts), MICROBATCHES, options)
    costs = CostModel(found, CLUSTER, cuts, (1,) * MICROBATCHES)
    return steady_state(play(program, costs, PERIODS)).iteration_s


def main() -> None:
    """Print the table."""
    print(f"| share of a device | {' | '.join(f'{share:g}' for share in SHARES)} |\n|---|{'---|' * len(SHARES)}")
    alone = [iteration_s(share, 1) for share in SHARES]
    again = [iteration_s(share, 1, recompute=True) for share in SHARES]
    recomputed = [iteration_s(share, 2, recompute=True) for share in SHARES]
    rows = {
        "align: both": (alone, [iteration_s(share, 2) for share in SHARES]),
        "align: forwards": (alone, [iteration_s(share, 2, align="forwards") for share in SHARES]),
        "recompute": (alone, recomputed),
        "recompute, by data parallelism that recomputes": (again, recomputed),
    }
    for name, (one, two) in rows.items():
        print(f"| {name} | {' | '.join(f'{a / b:.2f}' for a, b in zip(one, two, strict=True))} |")


if __name__ == "__main__":
    main()
