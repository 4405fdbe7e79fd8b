"""Output of `hocket plan` for analytic models: tables, the plan and its profile."""

import sys
from collections import Counter
from collections.abc import Iterator
from itertools import cycle, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from hocket.cli.output.table import CHOSEN, in_bytes, in_seconds, print_chosen, print_legend, print_table
from hocket.cli.output.tables import error_json, print_json, updates_json
from hocket.printable import say
from hocket.util.units import show_count, show_gap, show_number, show_seconds, show_shortage

if TYPE_CHECKING:
    from hocket.cli.plan.explain import Explanation
    from hocket.planning.goals.subclusters import Planned
    from hocket.planning.mesh.plan_model import SizedSearch
    from hocket.planning.mesh.search.result import LayoutMiss
    from hocket.planning.mesh.search.simulated import SimulatedLayout


_LEGEND = {
    "config": "p stages, t tensor-parallel size (s: with sequence parallelism), d data-parallel size, across: neighbours "
    "hold stages rather than replicas, v chunks a device, z1: replicas shard the optimizer's state, z3: weights, too, "
    "and the schedule if it is neither flush nor interleaved",
    "micro": "samples of a microbatch",
    "recompute": "recomputation inside blocks",
    "of peak": "share of the devices' peak rate, without recomputation",
    "bubble": "idle time divided by busy time",
    "memory": "of the fullest device",
}


def report(planned: "Planned[SizedSearch]", output: Path | None, rows: int, json: bool, why: "Explanation") -> None:
    """Print the result of a search, and write the best plan and its profile.

    Arguments:
        output: file for the best plan; None to write none.
        rows: number of layouts to print.
        json: True to print one JSON document.
        why: explanation to print.

    Raises:
        RefusedError: no layout fits; the error names the layout that misses the least memory. With `json`, the command
            exits with the error's code instead.
    """
    from hocket.cli.plan.goals import goal_json, goal_lines, print_parts
    from hocket.errors import HocketError
    from hocket.planning.goals.for_model import by_equation_4_4_s

    found = planned.found
    try:
        found.best  # noqa: B018  # raises the reason if no layout fits
    except HocketError as error:
        if not json:
            if found.meshes.considered:
                print(_counts(found))
            raise
        print_json({**sized_json(found, fits=False), "error": error_json(error)})
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    equation_s = by_equation_4_4_s(planned)
    if output:
        beside = found.save(output)
    if json:
        print_json({**sized_json(found), **goal_json(planned, equation_s), **why.json(found, output)})
        return
    if planned.parting is not None:
        print_parts(planned.parting)
    _print(found, rows)
    for line in goal_lines(planned, equation_s):
        say(f"  {line}")
    if output:
        print(f"wrote {output} and {beside}; next: hocket show {output}, hocket simulate {output}")
    why.print(found, output)


def sized_json(found: "SizedSearch", fits: bool = True) -> dict[str, Any]:
    """Return the search over layouts of an analytic model as plain data.

    Arguments:
        fits: True if some layout fits into memory.
    """
    from hocket.planning.explain.bottlenecks import limits_of
    from hocket.util.schema import as_data

    meshes = found.meshes

    def candidate(one: "SimulatedLayout") -> dict[str, Any]:
        mesh, limits = one.mesh, limits_of(found, one)
        sizes = ("tensor", "sequence_parallel", "depth", "width", "chunks", "microbatches", "recompute", "shard")
        return {
            "strategy": mesh.strategy,
            "update_rule": updates_json(found.updates(one)),
            "config": mesh.config,
            **{name: getattr(mesh, name) for name in sizes},
            "recompute_by_stage": mesh.again_by_stage,
            "microbatch_size": mesh.samples,
            "iteration_s": one.iteration_s,
            "samples_per_s": one.predicted.samples_per_s,
            "bubble_fraction": one.predicted.bubble_fraction,
            "peak_memory_bytes": {str(k): v for k, v in one.predicted.peak_memory_bytes.items()},
            "teraflops_per_device": found.flops_per_s(one) / 1e12,
            "share_of_peak": found.share_of_peak(one),
            "time_by_cause": limits.shares(),
            "memory_share": limits.memory_share,
        }

    def miss(one: "LayoutMiss | None") -> dict[str, Any] | None:
        if one is None:
            return None
        return {
            "config": str(one.mesh),
            "at_least_bytes": one.bytes,
            "capacity_bytes": one.capacity_bytes,
            "at_least_s": float(one.seconds),
        }

    behind = meshes.behind
    return {
        "model": as_data(found.model),
        "parameters": found.model.parameters,
        "search_s": found.search_s,
        "considered": meshes.considered,
        "too_large": meshes.too_large,
        "simulated": meshes.simulated,
        "candidates": [candidate(one) for one in found.told()] if fits else [],
        "next": {"config": str(behind[0]), "at_least_s": behind[1]} if behind else None,
        "quicker_with_more_memory": miss(meshes.quicker),
        "nearest_miss": miss(meshes.nearest),
        "simple": candidate(meshes.simple) if meshes.simple else None,
        "plan": as_data(found.plan(found.best)) if fits else None,
    }


def _counts(found: "SizedSearch") -> str:
    meshes = found.meshes
    ways = f"{show_count(meshes.considered, 'way')} to divide {show_count(found.cluster.devices, 'device')}"
    plans = f" as {len(meshes.found):,} plans" if len(meshes.found) > meshes.simulated else ""
    return (
        f"{ways}: {meshes.too_large:,} do not fit, {meshes.simulated:,} simulated{plans}, the others slower by their "
        f"bounds, in {show_seconds(found.search_s)}"
    )


def _print(found: "SizedSearch", limit: int) -> None:
    from hocket.planning.search.result import TIE

    best = found.told()[:limit]
    unit, times = in_seconds([one.iteration_s for one in best])
    size, peaks = in_bytes([one.bytes for one in best])
    rows = [
        [
            f"{one.mesh.strategy}{CHOSEN * (one is best[0] and len(best) > 1)}",
            one.mesh.config,
            str(one.mesh.samples),
            one.mesh.recompute,
            iteration,
            show_number(one.predicted.samples_per_s),
            f"{found.flops_per_s(one) / 1e12:.1f}",
            f"{found.share_of_peak(one):.1%}",
            f"{one.predicted.bubble_fraction:.1%}",
            peak,
        ]
        for one, iteration, peak in zip(best, times, peaks, strict=True)
    ]
    figures = [f"iteration ({unit})", "samples/s", "TFLOP/s", "of peak", "bubble", f"memory ({size})"]
    columns = ["strategy", "config", "micro", "recompute", *figures]
    billions = show_number(found.model.parameters / 1e9)
    active = f" ({show_number(found.model.active_parameters / 1e9)} active)" if found.model.experts else ""
    print_table(
        f"{found.model.name}, {billions} billion parameters{active}: {_counts(found)}",
        columns,
        rows,
        right=(2, 4, 5, 6, 7, 8, 9),
        drop=(5, 8, 7),
    )
    print_legend(_LEGEND, columns)
    print_chosen([one.iteration_s for one in best], TIE)
    for line in _reasons(found):
        say(f"  {line}")


def _on_types(best: "SimulatedLayout") -> str:
    """Describe the stages on each device type, such as "stages of 4-4 layers on v100"."""
    names, kinds = best.space.types
    own: dict[str, list[str]] = {}
    for place, (begin, end) in zip(cycle(best.mesh.stands), pairwise((0, *best.mesh.ends)), strict=False):
        own.setdefault(", ".join(dict.fromkeys(names[kinds[group]] for group in place)), []).append(str(end - begin))
    return ", ".join(f"stages of {'-'.join(layers)} layers on {name}" for name, layers in own.items())


def _reasons(found: "SizedSearch") -> Iterator[str]:
    """Yield sentences on the best layout.

    They describe its time by cause, the runner-up, and faster layouts that do not fit into memory.
    """
    from hocket.planning.explain.bottlenecks import limits_of

    best, meshes = found.written, found.meshes
    limits = limits_of(found, best)
    shares = {name: share for name, share in limits.shares().items() if share >= 0.005}
    spent = ", ".join(f"{name} {share:.0%}" for name, share in sorted(shares.items(), key=lambda one: -one[1]))
    yield f"time: {spent}; memory: {limits.memory_share:.0%} of the fullest device"
    if best.mesh.stale:
        yield f"updates: {found.updates(best).sentence(best.mesh.strategy)}"
    if meshes.simple:
        less = meshes.simple.iteration_s / best.iteration_s - 1
        yield f"mixed: {_on_types(best)}; {less:.0%} faster than {meshes.simple.mesh}, the best with equal stages or one device type"
    if any(word != "none" for word in best.mesh.again):
        each = Counter(word for word in best.mesh.again if word != "none")
        counts = ", ".join(f"{word} {count}" for word, count in sorted(each.items()))
        yield f"recompute: {counts} of {found.model.layers} blocks, as few as memory allows, in the first stages and chunks"
    rest = found.told()[1:]
    if rest:
        more = rest[0].iteration_s / best.iteration_s - 1
        yield f"runner-up: {rest[0].mesh} {show_gap(more)}" + (", which counts as equal" if more < 0 else "")
    elif meshes.behind:
        mesh, least_s = meshes.behind
        more = least_s / best.iteration_s - 1
        by = f"at least {more:.1%} more" if more >= 0 else f"at most {-more:.1%} less, which counts as equal"
        yield f"runner-up: {mesh}, by its bound {by}"
    if meshes.quicker and meshes.quicker.seconds < best.iteration_s:
        miss = meshes.quicker
        needed, available = show_shortage(miss.bytes, miss.capacity_bytes)
        yield (
            f"memory: {miss.mesh} could take up to {1 - miss.seconds / best.iteration_s:.1%} less, but needs "
            f"{needed} on a device of {available}"
        )
