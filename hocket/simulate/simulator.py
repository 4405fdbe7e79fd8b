"""The simulator: a program, its costs and a cluster in; a trace and a summary out. It obeys hocket/program/order.py.

Rules of this file: it moves arrays between the lowered program, the kernel and the trace; readiness is the lowered
program's, time is the kernel's, seconds and bytes are the cost model's.
"""

import sys
from dataclasses import dataclass, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from hocket.cost.model import CostModel
from hocket.errors import InputError, InternalError, ProgramError
from hocket.hardware.cluster import Cluster
from hocket.program.program import Program
from hocket.simulate import kernel
from hocket.simulate.lower import EPILOGUE, PERIOD, Skeleton, skeleton
from hocket.simulate.tables import Layout, cost_tables, use_tables
from hocket.trace.trace import Trace

ENGINES = ("auto", "numba", "python")
# Below this many nodes the plain kernel is done before numba is imported.
_SMALL = 30_000


@dataclass(frozen=True, eq=False)
class Outcome:
    """What the kernel found.

    Attributes:
        start_s, end_s: of each node (simulate/lower.py); cause: the node whose end let it start, -1 for none.
        peak_memory_bytes: by device.
        records: (seconds, device, bytes) of every change of memory, or empty arrays.
        wall_s: seconds that lowering and playing took.
    """

    layout: Layout
    costs: CostModel
    start_s: np.ndarray
    end_s: np.ndarray
    cause: np.ndarray
    peak_memory_bytes: dict[int, float]
    records: tuple[np.ndarray, np.ndarray, np.ndarray]
    wall_s: float

    @property
    def program(self) -> Program:
        """The program that was played."""
        return self.layout.skeleton.program

    @property
    def instructions(self) -> int:
        """Instructions that were played."""
        return self.layout.skeleton.counts(self.layout.repeats)

    @cached_property
    def trace(self) -> Trace:
        """The trace of the whole run."""
        layout, columns = self.layout, []
        prologue, period, _ = layout.sizes
        for part in layout.skeleton.parts:
            rows = np.array(part.rows, dtype=np.int64).reshape(len(part.rows), 8)
            rounds = np.arange(layout.repeats if part.number == PERIOD else 1)
            if part.number == EPILOGUE:
                rounds = rounds + layout.repeats
            lane, first, last, kind, stage, index, label, batch = (c[None, :] for c in rows.T)
            offset = rounds[:, None] * period if part.number == PERIOD else np.zeros((1, 1), dtype=np.int64)
            offset = offset + (0, prologue, prologue + layout.repeats * period)[part.number]
            moved = index + rounds[:, None] * self.program.stride // batch
            shape = np.zeros_like(moved)
            columns.append(
                [(c + shape).ravel() for c in (lane, kind, stage, moved, label)]
                + [self.start_s[first + offset].ravel(), self.end_s[last + offset].ravel()]
            )
        joined = [np.concatenate(parts) for parts in zip(*columns, strict=True)]
        seconds, device, size = self.records
        start = [d for d in self.program.devices]
        return Trace(
            layout.skeleton.lanes,
            layout.skeleton.labels,
            *joined,
            np.concatenate((np.array(start, dtype=np.int64), device)),
            np.concatenate((np.zeros(len(start)), seconds)),
            np.concatenate((np.array([self.costs.initial_bytes(d) for d in start], dtype=float), size)),
            {"source": "simulated", "program": self.program.name, "repeats": layout.repeats},
        )


def simulate(program: Program, costs: CostModel, cluster: Cluster, repeats: int | None = None) -> Trace:
    """When every instruction of a program runs on a cluster, and what memory every device holds.

    Arguments:
        costs: of the program's plan; those for another cluster are asked again for this one.
        repeats: of the period; by default enough for a steady state to be seen.

    Raises:
        ProgramError: the program cannot go on; the message names the instructions that wait.
    """
    return play(program, costs if costs.cluster == cluster else replace(costs, cluster=cluster), repeats).trace


def enough_repeats(program: Program) -> int:
    """Repetitions after which the pipeline is warm, and as many again to measure."""
    in_flight = max(program.admitted, len(program.stages), 1)
    return 2 * max(2, -(-2 * in_flight // max(program.stride, 1)))


def play(
    program: Program | Skeleton,
    costs: CostModel,
    repeats: int | None = None,
    engine: str = "auto",
    record: bool = True,
) -> Outcome:
    """As `simulate`, with everything that the kernel found.

    Arguments:
        program: a program, or one that was lowered before.
        engine: "python" or "numba" (the same numbers), or "auto": numba for long runs, where it is installed.
        record: keep every change of memory, not only the peaks.
    """
    began = perf_counter()
    if repeats is not None and repeats < 0:
        raise InputError("repeats", str(repeats), ">= 0")
    if engine not in ENGINES:
        raise InputError("engine", repr(engine), f"one of {', '.join(ENGINES)}")
    source = program.program if isinstance(program, Skeleton) else program
    count = enough_repeats(source) if repeats is None else repeats
    if isinstance(program, Skeleton):
        lowered = program if count >= program.reach else skeleton(source, count)
    else:
        lowered = skeleton(program, count)
    layout = Layout(lowered, count if lowered.parts[PERIOD].rows else 0)
    return _play(layout, costs, engine, record, began)


def _play(layout: Layout, costs: CostModel, engine: str, record: bool, began: float) -> Outcome:
    lowered, nodes = layout.skeleton, layout.nodes
    templates, edges, waits = layout.structure()
    size_class, cost = cost_tables(lowered, costs)
    uses = use_tables(lowered, costs)
    prologue, period, epilogue = layout.sizes
    devices = costs.cluster.devices
    lanes, resources = len(lowered.lanes), len(uses[-1])
    shape = (
        prologue,
        period,
        layout.repeats,
        epilogue,
        lowered.program.stride,
        len(cost[0]) // max(1, len(cost[1])),
    )
    queue = (_ints(lanes), _ints(lanes, -1), np.zeros(lanes), _ints(lanes))
    flags = (np.zeros(lanes, dtype=np.bool_), np.zeros(lanes, dtype=np.bool_))
    state = (_ints(lanes, -1), *flags, *(np.zeros(lanes) for _ in range(3)), np.zeros(resources))
    level = np.array([costs.initial_bytes(d) if d in lowered.program.devices else 0.0 for d in range(devices)])
    limit = _records(layout, cost) if record else 0
    memory = (level, level.copy(), np.zeros(limit), _ints(limit), np.zeros(limit))
    start, end = np.full(nodes, np.nan), np.full(nodes, np.nan)
    out = (waits, start, end, _ints(nodes, -1), _ints(nodes), _ints(1))
    arguments = (shape, (size_class, *templates), edges, cost, uses, queue, state, memory, out)
    fast = None
    if engine == "numba" or (engine == "auto" and (nodes >= _SMALL or "numba" in sys.modules)):
        fast = kernel.compiled()
    if fast is None and engine == "numba":
        raise InputError("engine", "numba is not installed", "python or auto", "Install numba.")
    if fast is not None:
        finished = fast(*arguments)
    else:
        plain = [tuple(x.tolist() if isinstance(x, np.ndarray) else x for x in group) for group in arguments]
        finished = kernel.play(*plain)
        memory, out = (tuple(np.array(x) for x in group) for group in (plain[7], plain[8]))
    if finished < nodes:
        raise _stuck(layout, out[2])
    count = int(out[5][0])
    if count > limit:
        raise InternalError(f"{count} records of memory where {limit} were expected")
    peaks = {d: float(memory[1][d]) for d in lowered.program.devices}
    records = (memory[2][:count], memory[3][:count], memory[4][:count])
    return Outcome(layout, costs, out[1], out[2], out[3], peaks, records, perf_counter() - began)


def _ints(count: int, value: int = 0) -> np.ndarray:
    return np.full(count, value, dtype=np.int64)


def _records(layout: Layout, cost: tuple[np.ndarray, ...]) -> int:
    """How many changes of memory a run makes at most."""
    hold, op_ptr, post = cost[2], cost[4], cost[8]
    count = len(cost[1])
    if not count:
        return 0
    each = np.diff(op_ptr) + (hold.reshape(count, -1) != 0).any(axis=1) + (post.reshape(count, -1) != 0).any(axis=1)
    parts = [int(each[np.array(part.signature, dtype=np.int64)].sum()) for part in layout.skeleton.parts]
    return parts[0] + layout.repeats * parts[1] + parts[2]


def _stuck(layout: Layout, end_s: Any) -> ProgramError:
    """The error for a program that cannot go on: the first instruction of every lane that waits for ever."""
    prologue, period, _ = layout.sizes
    waiting: dict[int, str] = {}
    for part in layout.skeleton.parts:
        rounds = layout.repeats if part.number == PERIOD else 1
        for r in range(rounds):
            base = (0, prologue + r * period, prologue + layout.repeats * period)[part.number]
            for lane, _, last, _, _, index, label, batch in part.rows:
                if lane not in waiting and np.isnan(end_s[base + last]):
                    by = r if part.number == PERIOD else layout.repeats if part.number == EPILOGUE else 0
                    moved = index + by * layout.skeleton.program.stride // batch
                    waiting[lane] = layout.skeleton.labels[label].replace("{}", str(moved))
    lines = [
        f"device {layout.skeleton.lanes[lane][0]}, lane {layout.skeleton.lanes[lane][1]}: {name}"
        for lane, name in sorted(waiting.items())
    ]
    return ProgramError(
        layout.skeleton.program.name,
        f"a deadlock: these wait for each other: {'; '.join(lines[:8])}",
        "an order in which every instruction can start",
    )
