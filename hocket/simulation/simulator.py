"""Simulator: from a program, its costs and a cluster to a trace and a summary.

The order of instructions follows hocket/program/order.py. The lowered program (engine/lower.py) says when an
instruction is ready, the cost model gives seconds and bytes, and the event loop (engine/kernel.py) computes times.
This module moves arrays between them.
"""

from dataclasses import replace
from math import gcd
from time import perf_counter
from typing import Any

import numpy as np

from hocket.cost.model import CostModel
from hocket.cost.sizes import PlanSizes
from hocket.errors import InputError, InternalError, ProgramError
from hocket.hardware.cluster import Cluster
from hocket.program.program import Program
from hocket.program.trace.trace import Trace
from hocket.simulation.engine import kernel
from hocket.simulation.engine.arrivals import meeting_tables
from hocket.simulation.engine.lower import skeleton
from hocket.simulation.engine.nodes import EPILOGUE, PERIOD
from hocket.simulation.engine.tables import NodeLayout, cost_tables, use_tables
from hocket.simulation.result import SimulationResult
from hocket.simulation.summary import Summary, summarize
from hocket.util.gc_pause import paused

__all__ = ["SimulationResult", "Summary", "lay_out", "play", "simulate", "summarize"]

ENGINES = ("auto", "numba", "python")
# Loading the compiled event loop takes as long as simulating this many nodes in plain Python. Compiling it, once on a
# machine, takes longer.
_SMALL = 60_000

_played_plainly = 0  # nodes that this process has simulated in plain Python, over all programs


def simulate(program: Program, costs: CostModel, cluster: Cluster, repeats: int | None = None) -> Trace:
    """Simulate a program on a cluster.

    Arguments:
        costs: costs of the program's plan; the cluster of the costs is replaced by `cluster`.
        repeats: repetitions of the steady-state period; by default enough to measure it.

    Returns:
        Start and end of every instruction, and memory of every device over time.

    Raises:
        ProgramError: the program deadlocks; the message names the instructions that wait. Or see `lay_out`.
    """
    return play(program, costs if costs.cluster == cluster else replace(costs, cluster=cluster), repeats).trace


def enough_repeats(program: Program, batch: int = 1) -> int:
    """Number of repetitions of the period that are enough to measure a steady state.

    Arguments:
        batch: number of microbatches after which microbatch sizes repeat. The measured span has a multiple of it,
            and as many go before it: replicas with unlike microbatches share cores until their order repeats.
    """
    in_flight = max(program.admitted, len(program.stages), 1) + program.load_span * program.stride
    warm = max(2, -(-2 * in_flight // max(program.stride, 1)))
    alike = batch // gcd(batch, max(program.stride, 1))
    return max(2 * warm, warm + 1 + alike) + alike - 1


def lay_out(program: Program, repeats: int | None = None) -> NodeLayout:
    """Lower a program for a number of repetitions of its period.

    Reuse the result to simulate one program with several costs.

    Arguments:
        repeats: number of repetitions; by default enough to measure a steady state.

    Raises:
        InputError: the number of repetitions is negative.
        ProgramError: a send has no receive, a collective lacks a rank, or a value is read and never written.
    """
    if repeats is not None and repeats < 0:
        raise InputError("repeats", str(repeats), ">= 0")
    count = enough_repeats(program) if repeats is None else repeats
    with paused():  # lowering creates many small tuples; garbage collection would take half the time
        lowered = skeleton(program, count)
        layout = NodeLayout(program, lowered, count if lowered.parts[PERIOD].rows else 0, count)
        _ = layout.structure
    return layout


def play(
    program: Program | NodeLayout,
    costs: CostModel,
    repeats: int | None = None,
    engine: str = "auto",
    record: bool = True,
) -> SimulationResult:
    """Simulate a program like `simulate`, and return all results.

    Arguments:
        program: a program; or the result of `lay_out`, which has its own number of repetitions.
        costs: seconds and bytes of instructions.
        repeats: repetitions of the steady-state period; by default enough to measure it.
        engine: "python" or "numba" (the same numbers), or "auto": numba if it is installed and there are enough
            nodes.
        record: True to keep every change of memory, not only the peaks.

    Raises:
        InputError: an unknown engine, numba is not installed, or the number of repetitions is negative.
        ProgramError: the program deadlocks, or cannot be lowered (`lay_out`).
    """
    began = perf_counter()
    if engine not in ENGINES:
        raise InputError("engine", repr(engine), f"one of {', '.join(ENGINES)}")
    if not isinstance(program, NodeLayout) and repeats is None:
        repeats = enough_repeats(program, costs.rounds)
    layout = program if isinstance(program, NodeLayout) else lay_out(program, repeats)
    lowered, nodes = layout.skeleton, layout.nodes
    templates, edges, waits = layout.structure
    size_class, cost = cost_tables(lowered, costs)
    uses = use_tables(lowered, costs)
    lanes, resources = len(lowered.lanes), len(uses[-1])
    prologue, period, epilogue = layout.sizes
    classes = int(size_class.max()) + 1
    shape = (prologue, period, layout.repeats, epilogue, lowered.program.stride, classes)
    queue = (_ints(lanes), _ints(lanes, -1), np.zeros(lanes), _ints(lanes))
    flags = (np.zeros(lanes, dtype=np.bool_), np.zeros(lanes, dtype=np.bool_))
    state = (_ints(lanes, -1), _ints(lanes), *flags, *(np.zeros(lanes) for _ in range(3)), np.zeros(resources))
    devices = range(costs.cluster.devices)
    sizes = PlanSizes(costs, layout.program)
    level = np.array([sizes.resident(d) if d in layout.program.devices else 0.0 for d in devices], dtype=np.float64)
    limit = _records(layout, cost) + len(level) if record else 0
    memory = (level, level.copy(), np.zeros(limit), _ints(limit), np.zeros(limit), np.zeros(len(level)))
    out = (waits.copy(), np.full(nodes, np.nan), np.full(nodes, np.nan), _ints(nodes, -1), _ints(nodes), _ints(1))
    meets = meeting_tables(layout, costs)
    arguments = (shape, (size_class, *templates), edges, cost, uses, queue, state, memory, out, meets)
    finished, memory, out, meets = _run(arguments, engine, nodes)
    if finished < 0:
        over = int(np.isfinite(out[2]).sum())
        raise InternalError(
            f"{layout.program.name} does not end: {over} of {nodes} nodes have ended after all their events"
        )
    if finished < nodes:
        raise _stuck(layout, out[2])
    count = int(out[5][0])
    peaks = {d: float(memory[1][d]) for d in layout.program.devices}
    records = (memory[2][:count], memory[3][:count], memory[4][:count])
    return SimulationResult(
        program=layout.program,
        repeats=layout.asked,
        layout=layout,
        costs=costs,
        start_s=out[1],
        end_s=out[2],
        cause=out[3],
        peak_memory_bytes=peaks,
        records=records,
        late_s=meets[-1],
        wall_s=perf_counter() - began,
    )


def _run(
    arguments: tuple[Any, ...], engine: str, nodes: int
) -> tuple[int, tuple[Any, ...], tuple[Any, ...], tuple[Any, ...]]:
    """Run `kernel.play`, compiled or in plain Python.

    Arguments:
        arguments: arguments of `kernel.play`.
        engine: "python", "numba" or "auto".
        nodes: number of nodes of the run.

    Returns:
        Number of finished nodes; and the arrays `memory`, `out` and `meets` of `kernel.play`.
    """
    global _played_plainly
    fast = None
    if engine == "numba" or (engine == "auto" and _played_plainly + nodes >= _SMALL):
        fast = kernel.compiled()
    if fast is not None:
        return fast(*arguments), *arguments[7:10]
    if engine == "numba":
        raise InputError("engine", "numba is not installed", "python or auto", "Install numba.")
    _played_plainly += nodes
    # Indexing single elements is several times as fast in plain lists as in arrays.
    plain = [tuple(x.tolist() if isinstance(x, np.ndarray) else x for x in group) for group in arguments]
    finished = kernel.play(*plain)
    memory, out, meets = (tuple(np.array(x) for x in group) for group in plain[7:10])
    return finished, memory, out, meets


def _ints(count: int, value: int = 0) -> np.ndarray:
    return np.full(count, value, dtype=np.int64)


def _records(layout: NodeLayout, cost: tuple[np.ndarray, ...]) -> int:
    """Upper bound of the number of changes of memory in a run.

    Arguments:
        cost: second result of `cost_tables`.
    """
    hold, op_ptr, post = cost[2], cost[4], cost[8]
    count = len(cost[1])
    if not count:
        return 0
    each = (
        1
        + np.diff(op_ptr)
        + (hold.reshape(count, -1) != 0).any(axis=1)
        + 1 * (post.reshape(count, -1) != 0).any(axis=1)
    )
    parts = [int(each[np.array(part.signature, dtype=np.int64)].sum()) for part in layout.skeleton.parts]
    return parts[0] + layout.repeats * parts[1] + parts[2]


def _stuck(layout: NodeLayout, end_s: np.ndarray) -> ProgramError:
    """Error for a deadlock; it names the first waiting instruction of up to 8 lanes.

    Arguments:
        end_s: end of each node; NaN for a node that has not ended.
    """
    skeleton = layout.skeleton
    waiting: dict[int, str] = {}
    for part in skeleton.parts:
        for r in range(layout.repeats if part.number == PERIOD else 1):
            by = layout.repeats if part.number == EPILOGUE else r
            for lane, _, last, _, _, index, label, batch in part.rows:
                if lane not in waiting and np.isnan(end_s[layout.number((part.number, last, r))]):
                    moved = index + by * skeleton.program.stride // batch
                    waiting[lane] = skeleton.labels[label].replace("{}", str(moved))
    lanes = [f"device {skeleton.lanes[k][0]}, lane {skeleton.lanes[k][1]}: {waiting[k]}" for k in sorted(waiting)]
    return ProgramError(
        layout.program.name,
        f"a deadlock: these wait for each other: {'; '.join(lanes[:8])}",
        "an order in which every instruction can start",
    )
