"""State of a device that a foreground and a background job share.

The state is the foreground's current layer of each compute lane, and the background's current launch: a piece of work
that runs to its end. Rates follow from the state (`Collocation` and `Ceiling` in cost/contention.py).
background/replay.py handles the events.
"""

from dataclasses import dataclass, field
from math import inf

from hocket.cost.background.background import Background, Launch
from hocket.cost.background.device_share import LayerDemand
from hocket.cost.contention import Ceiling, Collocation


@dataclass
class Motion:
    """Progress of a running node.

    A node first has its latency (`phase` 0), then its work (`phase` 1). A compute instruction proceeds layer by layer.

    Attributes:
        node: number of the node.
        devices: participating devices with a background job.
        since: time of the last update, in seconds.
        left: seconds of latency or work that remained at `since`.
        rate: rate since then; 1 as if alone.
        pace: rate relative to the rate without launches.
        began: time at which the layer or the collective began.
        lost_s: seconds that the layer or the collective lost to launches.
        works: layers of a compute instruction; empty for other nodes.
        at: index of the running layer.
        version: number of the latest update; events of earlier versions are void.
    """

    node: int
    devices: tuple[int, ...]
    since: float
    left: float = 0.0
    rate: float = 1.0
    pace: float = 1.0
    began: float = 0.0
    lost_s: float = 0.0
    phase: int = 0
    works: tuple[LayerDemand, ...] = ()
    at: int = 0
    version: int = 0

    @property
    def computes(self) -> bool:
        """True if the node computes layers on a device with a background job."""
        return bool(self.works)


@dataclass
class SharedDevice:
    """One device that a foreground and a background job share.

    Attributes:
        number: number of the device.
        job: the background job.
        rules: rules of sharing.
        ceiling: joint limit on the rates of both jobs.
        place: index of the current or next launch in the background's step.
        layers: running compute instructions of the foreground on this device, by node.
        collectives: running collectives of the foreground on this device, by node.
        pace: rate of the foreground's layers beside the launch; 1 without a launch.
        queued: number of launches in the device's queue that have not ended.
        share: share of the device that the launch has; 0 without a launch.
        work_s: seconds of the launch's work that remained at `since`.
        speed: rate of the launch since then; 1 as if alone.
        launched: time at which the launch began.
        since: time of the last update, in seconds.
        version: number of the latest update; events of earlier versions are void.
        asked: True if an attempt to begin a launch is scheduled.
        log: begin, end and seconds of work of every launch.
    """

    number: int
    job: Background
    rules: Collocation
    ceiling: Ceiling
    place: int = 0
    layers: dict[int, Motion] = field(default_factory=dict)
    collectives: dict[int, Motion] = field(default_factory=dict)
    pace: float = 1.0
    queued: int = 0
    share: float = 0.0
    work_s: float = 0.0
    speed: float = 0.0
    launched: float = 0.0
    since: float = 0.0
    version: int = 0
    asked: bool = False
    log: list[tuple[float, float, float]] = field(default_factory=list)

    @property
    def launch(self) -> Launch:
        """The current or next launch."""
        return self.job.launches[self.place]

    @property
    def busy(self) -> bool:
        """True if a launch runs on the device."""
        return self.share > 0

    @property
    def demand(self) -> float:
        """Share of the device that the foreground's layers need together."""
        return min(1.0, sum(one.works[one.at].demand for one in self.layers.values()))

    def room(self) -> float:
        """Share of the device that the next launch would get; 0 if it is too small."""
        need = self.launch.demand
        share = self.rules.share(self.demand, need, self.ceiling)
        return share if share >= min(need, self.rules.least_share) else 0.0

    def begin(self, share: float, now: float) -> None:
        """Begin the next launch, and queue further launches (`Collocation.outstanding`).

        Arguments:
            share: share of the device that the launch gets.
        """
        self.queued = self.rules.outstanding
        self._put(share, now)

    def advance(self, now: float) -> None:
        """Subtract the work that the launch has done since the last update."""
        if self.busy:
            self.work_s -= (now - self.since) * self.speed
        self.since = now

    def settle(self, now: float) -> float:
        """Update the rates of both jobs.

        Returns:
            Time at which the launch ends; infinite without a launch.
        """
        self.version += 1
        self.pace = 1.0
        if not self.busy:
            return inf
        need, demand = self.launch.demand, self.demand
        preferred = self.rules.priority and self.queued == self.rules.outstanding
        self.share = max(self.share, self.rules.share(demand, need, self.ceiling)) if preferred else need
        share = self.share if preferred else None
        self.pace, self.speed = self.rules.rates(demand, need, share, self.ceiling)
        return now + max(0.0, self.work_s) / self.speed

    def end(self, now: float) -> bool:
        """End the launch, and begin the next one that is queued.

        Returns:
            True if no launch is queued.
        """
        self.log.append((self.launched, now, self.launch.seconds))
        self.place = (self.place + 1) % len(self.job.launches)
        self.queued -= 1
        if self.queued > 0:
            self._put(self.launch.demand, now)
            return False
        self.share = 0.0
        return True

    def stop(self, now: float) -> None:
        """Log the finished part of the current launch when the foreground has ended."""
        if self.busy and self.launched < now:
            self.advance(now)
            self.log.append((self.launched, now, self.launch.seconds - self.work_s))

    def _put(self, share: float, now: float) -> None:
        self.share, self.work_s, self.launched, self.since = share, self.launch.seconds, now, now
