"""A device that runs a background job: the foreground's layers on it, one of each compute lane, and the launch that is on it.

Rules of this file: state of one device and the rates that follow from it (`Collocation`, `Ceiling`); events are the replay's.
"""

from dataclasses import dataclass, field
from math import inf

from hocket.cost.background.background import Background, Launch
from hocket.cost.background.device_share import LayerDemand
from hocket.cost.contention import Ceiling, Collocation


@dataclass
class Motion:
    """A node in motion: latency (`phase` 0), then its work; layer by layer for computation.

    Attributes:
        left, rate, since: seconds of work that remained at a time, and the rate from then on. pace: the rate by that without launches.
        devices: that run a background and take part; of a compute instruction the one that computes, if it runs a background.
        began, lost_s: of the layer or the collective, when it began, and seconds that it lost to launches.
        works, at: of a compute instruction its layers, and the one that runs.
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
        """True if foreground layers run here on a device that has a background."""
        return bool(self.works)


@dataclass
class SharedDevice:
    """One device shared by two jobs.

    Attributes:
        ceiling: what both jobs do together at most. place: of the launch that is on the device, or comes next, in the background's step.
        layers, collectives: of the foreground, in motion here, by node.
        pace: of the foreground's layers beside the launch, 1 without one.
        share: of the device, that the launch has; 0 for no launch. queued: launches that were given to the device and are not over.
        work_s, speed, since: seconds of the launch's work that remained at a time, and its rate from then on.
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
        """The launch that is on the device, or comes next."""
        return self.job.launches[self.place]

    @property
    def busy(self) -> bool:
        """True if a launch is on the device."""
        return self.share > 0

    @property
    def demand(self) -> float:
        """Share of the device that the foreground's layers need together."""
        return min(1.0, sum(one.works[one.at].demand for one in self.layers.values()))

    def room(self) -> float:
        """The share that a launch may begin with; 0 where that is less than a launch takes."""
        need = self.launch.demand
        share = self.rules.share(self.demand, need, self.ceiling)
        return share if share >= min(need, self.rules.least_share) else 0.0

    def begin(self, share: float, now: float) -> None:
        """Begin the next launch, with those that are given to the device together with it."""
        self.queued = self.rules.outstanding
        self._put(share, now)

    def advance(self, now: float) -> None:
        """Count the launch's work since the last look."""
        if self.busy:
            self.work_s -= (now - self.since) * self.speed
        self.since = now

    def settle(self, now: float) -> float:
        """Give both jobs their rates; return when the launch ends, infinite without one."""
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
        """End the launch; return whether none follows at once."""
        self.log.append((self.launched, now, self.launch.seconds))
        self.place = (self.place + 1) % len(self.job.launches)
        self.queued -= 1
        if self.queued > 0:
            self._put(self.launch.demand, now)
            return False
        self.share = 0.0
        return True

    def stop(self, now: float) -> None:
        """Note the part of a launch that was done when the foreground came to its end."""
        if self.busy and self.launched < now:
            self.advance(now)
            self.log.append((self.launched, now, self.launch.seconds - self.work_s))

    def _put(self, share: float, now: float) -> None:
        self.share, self.work_s, self.launched, self.since = share, self.launch.seconds, now, now
