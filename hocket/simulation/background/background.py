"""Simulation of a background job on devices that a foreground job leaves idle.

The background job submits launches to each device: pieces of work that run to their end. The kernel
(simulation/engine/kernel.py) simulates the foreground without a background job. replay.py simulates it again with the
background job. Throughput and slowdown compare the steady states of both.

Source: Park et al., DeepPool (MLSys 2022), sections 5 and 7.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import gcd, inf

import numpy as np

from hocket.cost.background.background import Background, Launch
from hocket.cost.contention import Ceiling, Collocation
from hocket.errors import InputError
from hocket.program.instruction import Kind, computes
from hocket.program.trace.trace import Trace
from hocket.simulation.background.replay import SOON_S, BackgroundReplay, Operator
from hocket.simulation.engine.unrolled import Unrolled, covered
from hocket.simulation.result import SimulationResult
from hocket.simulation.steady_state import Steady, steady_state

REPEATS = 24
"""Sufficient repetitions of the steady-state period: launches begin at another time in each of them."""
_ROUNDS = 2  # further replays, each with more paused operators; a third changes nearly nothing


@dataclass(frozen=True, eq=False)
class Collocated:
    """Simulated foreground and background job together.

    Attributes:
        alone: the foreground's run without the background job.
        foreground: the foreground's run with the background job; it has no records of memory.
        rules: rules of sharing a device.
        devices: devices that run the background job. It runs alone on a device that the foreground does not use.
        launches: begin, end and seconds of work of every launch; shape (launches, 3). By device that both jobs use.
        paused: layers and collectives of the foreground beside which no launch begins, because they lost too much
            time.
        lost_s: seconds that the foreground's layers and collectives lost, by cause (`BackgroundReplay.lost_s`).
        ceilings: joint limit on the rates of both jobs, by device that both jobs use.
        twins: by device of a pipeline replica (column) that is not simulated, the simulated device with equal figures.
        columns: number of identical pipeline replicas for which the simulated one stands.
        excerpt: label of the simulated part of the foreground, such as "64 of 4,096 microbatches"; empty for all of it.
    """

    alone: SimulationResult
    foreground: SimulationResult
    background: Background
    rules: Collocation
    devices: tuple[int, ...]
    launches: dict[int, np.ndarray]
    paused: frozenset[Operator]
    lost_s: dict[str, float]
    ceilings: dict[int, Ceiling]
    twins: Mapping[int, int] = field(default_factory=dict)
    columns: int = 1
    excerpt: str = ""

    @cached_property
    def steady(self) -> tuple[Steady, Steady]:
        """Steady states of the foreground without and with the background job."""
        return steady_state(self.alone), steady_state(self.foreground)

    @property
    def slowdown(self) -> float:
        """Seconds of a foreground iteration, relative to an iteration without background job."""
        before, after = self.steady
        return after.iteration_s / before.iteration_s

    @cached_property
    def room(self) -> bool:
        """True if both jobs can share a device.

        Some layer of the foreground, or some launch of the background, must leave a part of the device free.
        """
        if any(launch.demand < 1 for launch in self.background.launches):
            return True
        unrolled = Unrolled(self.alone.layout, self.alone.costs)
        works = (work for n in range(len(self.alone.end_s)) if unrolled.computes(n) for work in unrolled.works(n))
        return any(1 - work.demand >= self.rules.least_share for work in works)

    @property
    def at_ceiling(self) -> bool:
        """True if no launch may begin beside a layer of the foreground.

        The background job then uses no device better than the foreground job does.
        """
        return all(one.room < self.rules.least_share for one in self.ceilings.values())

    @property
    def foreground_samples_per_s(self) -> float:
        """Samples per second of the foreground job, beside the background job."""
        return self.columns * self.foreground.costs.batch_size / self.steady[1].iteration_s

    @property
    def foreground_samples_per_s_alone(self) -> float:
        """Samples per second of the foreground job, without the background job."""
        return self.columns * self.alone.costs.batch_size / self.steady[0].iteration_s

    @property
    def peak_memory_bytes(self) -> dict[int, float]:
        """Peak memory of the foreground job, by device that it uses."""
        peaks = self.alone.peak_memory_bytes
        return {**peaks, **{device: peaks[twin] for device, twin in self.twins.items()}}

    @cached_property
    def background_samples_per_s(self) -> dict[int, float]:
        """Samples per second of the background job, by device."""
        begin, end = self._window
        found = dict.fromkeys(self.devices, self.background.samples_per_s)
        for device, log in self.launches.items():
            there = np.minimum(log[:, 1], end) - np.maximum(log[:, 0], begin)
            done_s = float((log[:, 2] * np.maximum(there, 0.0) / (log[:, 1] - log[:, 0])).sum())
            found[device] = done_s / self.background.step_s * self.background.samples / (end - begin)
        return {device: found[self.twins.get(device, device)] for device in self.devices}

    @property
    def samples_per_s(self) -> float:
        """Samples per second of both jobs over all devices, added up.

        It is the total throughput if both jobs train the same model.
        """
        return self.foreground_samples_per_s + sum(self.background_samples_per_s.values())

    @cached_property
    def idle(self) -> dict[int, tuple[float, float]]:
        """Share of time in which each device is idle, without and with the background job.

        The result has all devices of the cluster.
        """
        before = self.steady[0]
        begin, end = self._window
        found = {}
        for device in range(self.foreground.costs.cluster.devices):
            busy_s = before.busy_s.get(device, 0.0)
            used = float(device in self.devices and device not in self.launches)
            if device in self._computed:
                log = self.launches.get(device, np.zeros((0, 3)))
                used = covered(np.concatenate((self._computed[device], log[:, :2])), begin, end) / (end - begin)
            found[device] = (1 - busy_s / before.period_s, 1 - used)
        return {device: found[self.twins.get(device, device)] for device in found}

    @cached_property
    def trace(self) -> Trace:
        """Trace of the foreground's run with the background job.

        Launches that follow each other without a gap are one span. Of memory it has only peaks.
        """
        spans = {d: _joined(log[:, :2]) for d, log in self.launches.items() if len(log)}
        found, none = self.foreground.trace, np.zeros(0)
        peaks = {str(d): size for d, size in self.alone.peak_memory_bytes.items()}
        meta = {**found.meta, "background": self.background.name, "peak_memory_bytes": peaks}
        devices = none.astype(np.int64)
        return replace(found, background=spans, meta=meta, memory_device=devices, memory_s=none, memory_bytes=none)

    @property
    def _window(self) -> tuple[float, float]:
        """Begin and end, in seconds, of the whole steady-state periods that are measured."""
        layout, steady = self.foreground.layout, self.steady[1]
        if steady.last < 0:
            return 0.0, self.foreground.makespan_s
        prologue, period, _ = layout.sizes
        stop = prologue + (steady.last + 1) * period
        end = float(self.foreground.end_s[stop - period : stop].max())
        first = (steady.last - 1) // 2
        begin = float(self.foreground.end_s[prologue + first * period : prologue + (first + 1) * period].max())
        return begin, end

    @cached_property
    def _computed(self) -> dict[int, np.ndarray]:
        """Begin and end of the foreground's compute nodes, by device; shape (nodes, 2)."""
        run, found = self.foreground, {}
        unrolled = Unrolled(run.layout, run.costs)
        nodes = [n for n in range(len(run.end_s)) if unrolled.computes(n)]
        at = np.array([unrolled.instruction(n).device for n in nodes], dtype=np.int64)
        spans = np.stack((run.start_s[nodes], run.end_s[nodes]), axis=1)
        for device in run.program.devices:
            found[device] = spans[at == device]
        return found


def collocate(
    outcome: SimulationResult,
    background: Background,
    rules: Collocation | None = None,
    devices: Iterable[int] | None = None,
) -> Collocated:
    """Replay a run with a background job on devices of its cluster.

    On devices that the run does not use, the background job is alone.

    Arguments:
        outcome: result of a run of several repetitions (REPEATS), so that launches begin at many times of the period.
        background: the background job.
        rules: rules of sharing a device; by default `Collocation()`.
        devices: devices that run the background job; by default all devices of the cluster.

    Raises:
        InputError: a device is not in the cluster.
    """
    rules = rules or Collocation()
    cluster = outcome.costs.cluster
    chosen = tuple(range(cluster.devices)) if devices is None else tuple(sorted(set(devices)))
    if any(not 0 <= d < cluster.devices for d in chosen):
        raise InputError("background: devices", str(chosen), f"0 to {cluster.devices - 1}")
    paused: frozenset[Operator] = frozenset()
    replay = BackgroundReplay(outcome, background, rules, chosen, paused)
    replay.run()
    for _ in range(_ROUNDS if rules.slowdown_limit < inf else 0):
        slow = {
            operator
            for operator, (took_s, alone_s) in replay.seen.items()
            if took_s > alone_s * rules.slowdown_limit * (1 + 1e-9)
        }
        if slow <= paused:
            break
        paused |= slow
        replay = BackgroundReplay(outcome, background, rules, chosen, paused)
        replay.run()
    launches = {d: np.array(one.log, dtype=float).reshape(-1, 3) for d, one in replay.devices.items()}
    ceilings = {d: one.ceiling for d, one in replay.devices.items()}
    return Collocated(
        outcome, replay.outcome_of(), background, rules, chosen, launches, paused, dict(replay.lost_s), ceilings
    )


def background_of(outcome: SimulationResult, name: str = "") -> Background:
    """Build a background job from a simulated run on one device.

    Its launches are forwards and backwards, layer by layer, and steps. Work of the host and idle times are left out,
    because a background job has time to load data ahead.

    Arguments:
        name: name of the job; by default the program's name.

    Raises:
        InputError: the run has several devices.
    """
    program, costs = outcome.program, outcome.costs
    if len(program.devices) != 1:
        raise InputError("background", f"a plan for {len(program.devices)} devices", "a plan for one device")
    layout, steady = outcome.layout, steady_state(outcome)
    prologue, period, _ = layout.sizes
    if steady.last >= 0:
        stride = layout.skeleton.program.stride
        many = costs.rounds // gcd(costs.rounds, max(stride, 1))
        begin, stop = prologue + (steady.last + 1 - many) * period, prologue + (steady.last + 1) * period
        samples = many * steady.batches * costs.batch_size
    else:
        begin, stop, samples = 0, layout.nodes, steady.batches * costs.batch_size
    unrolled = Unrolled(layout, costs)
    nodes = [n for n in range(begin, stop) if computes(unrolled.instruction(n).lane)]
    nodes = [n for n in nodes if unrolled.instruction(n).kind not in (Kind.LOAD, Kind.DROP)]
    launches = [
        Launch(seconds, work.demand or 1.0, str(unrolled.instruction(n).kind))
        for n in sorted(nodes, key=lambda n: float(outcome.start_s[n]))
        for work in unrolled.works(n)
        if (seconds := float(outcome.end_s[n] - outcome.start_s[n]) * work.fraction) > 0
    ]
    peak = max(outcome.peak_memory_bytes.values())
    return Background(name or program.name, samples, tuple(launches), peak)


def _joined(spans: np.ndarray) -> np.ndarray:
    """Join spans of time without a gap between them.

    Arguments:
        spans: begin and end of each span; shape (spans, 2), like the result.
    """
    if not len(spans):
        return spans
    apart = np.flatnonzero(spans[1:, 0] - spans[:-1, 1] > 2 * SOON_S)
    return np.stack((spans[np.append(0, apart + 1), 0], spans[np.append(apart, -1), 1]), axis=1)
