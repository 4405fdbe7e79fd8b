"""Update semantics: how a plan's updates differ from those of one process.

Rules of this file: the declared rule (hocket/program/rule.py) defines the semantics. Here they are only counted in
samples and put into words.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from hocket.errors import InputError, nearest
from hocket.planning.predict.model_differences import STAGE_NORMS, Difference
from hocket.program.program import StageShape
from hocket.program.rule import Rule
from hocket.strategies.base.strategy import all_strategies, complete, microbatches_of, strategy
from hocket.util.units import show_count


@dataclass(frozen=True)
class UpdateSemantics:
    """Composition of one optimizer update of a plan.

    Attributes:
        kind: kind of the update rule: sync, stashed, vertical, delayed, naive or averaged.
        old: how many updates old the weights of a gradient are, on the stage with the least and on the stage with the
            most, once the pipeline is filled.
        samples: samples that one update averages, on the stages with the fewest and the most; the last microbatch
            of a batch may have fewer.
        batch_size: samples that one update of one process averages.
        differences: differences from one process that do not come from the update rule: those of the model if a batch
            is divided into microbatches, and clipping by the norm of each stage.
    """

    kind: str
    old: tuple[int, int]
    samples: tuple[int, int]
    batch_size: int
    differences: tuple[Difference, ...] = ()

    @property
    def same(self) -> bool:
        """True if the update rule equals that of one process."""
        return not self.shared and self.old == (0, 0) and self.samples == (self.batch_size, self.batch_size)

    @property
    def shared(self) -> bool:
        """True if two replicas exchange gradients.

        Half of the gradients are computed on the other replica's weights.
        """
        return self.kind == "averaged"

    @property
    def age(self) -> str:
        """Staleness of a gradient, such as "up to 3 updates old"; empty if fresh."""
        least, most = self.old
        return "" if not most else f"{'up to ' if least < most else ''}{show_count(most, 'update')} old"

    @property
    def text(self) -> str:
        """Short text for a table column.

        Examples: "same", "same but loss", "two waves", "1 update old", "up to 3 updates old, of 16".
        """
        if self.same:
            return " but ".join(["same", *([self._kinds] if self.differences else [])])
        if self.shared:
            return "two waves"
        if self.samples == (self.batch_size, self.batch_size):
            return self.age
        return f"{self.age}, of {_range(self.samples)}" if self.age else f"updates of {_range(self.samples)}"

    @property
    def _kinds(self) -> str:
        return ", ".join(one.kind for one in self.differences)

    def sentence(self, name: str) -> str:
        """Sentence about the strategy with this name."""
        if self.same:
            but = f" but for {self._kinds}" if self.differences else ""
            return f"{name} has the mathematics of one process{but}: each update averages the {self.batch_size} samples of a batch"
        parts = []
        if self.shared:
            parts.append(
                "trains two replicas in turn, each with gradients of which half were computed on the other's weights"
            )
        if self.age:
            newest = ", and backwards use the newest weights" if self.kind == "naive" else ""
            parts.append(f"computes gradients on weights {self.age}{newest}")
        if self.samples != (self.batch_size, self.batch_size):
            parts.append(f"averages {_range(self.samples)} samples an update, not {self.batch_size}")
        return f"{name} {' and '.join(parts)}"


def updates_of(
    name: str,
    shapes: tuple[StageShape, ...],
    batch_size: int,
    microbatch_size: int,
    options: dict[str, object],
    differences: tuple[Difference, ...] = (),
) -> UpdateSemantics:
    """Update semantics of a strategy on some stages.

    Arguments:
        name: name of the strategy.
        shapes: shape of each stage.
        options: options of the strategy in the plan.
        differences: differences from one process that the model has if a batch is divided into microbatches.

    Raises:
        InputError: an unknown strategy or option.
    """
    microbatches = microbatches_of(name, batch_size, microbatch_size, (len(shape.devices) for shape in shapes)).count
    rule = strategy(name).rule(shapes, microbatches, complete(name, options))
    counts = [batch_size if count == microbatches else count * microbatch_size for count in rule.batch]
    cut = differences if microbatches > 1 else ()
    if sum(not shape.wave for shape in shapes) > 1 and any(shape.clips_alone for shape in shapes):
        cut = (*cut, STAGE_NORMS)
    return UpdateSemantics(rule.kind, (min(rule.delay), max(rule.delay)), (min(counts), max(counts)), batch_size, cut)


@cache
def synchronous_strategies() -> tuple[str, ...]:
    """Names of strategies that are synchronous on any stages.

    They make one update for a batch, on the newest weights.
    """
    stages = (StageShape((0,), targets=(1,), batch=True), StageShape((1,), sources=(0,), gradients=(0,), batch=True))
    found: list[str] = []
    for name, member in all_strategies():
        rule: Rule = member.rule(stages, 2, complete(name, {}))
        if rule.kind == "sync":
            found.append(name)
    return tuple(found)


def considered(
    strategies: Sequence[str], synchronous: bool | None, known: Sequence[str], unnamed: Sequence[str], where: str = ""
) -> tuple[str, ...]:
    """Names of the strategies that a search considers.

    Arguments:
        strategies: names from the user; if empty, a default set is considered.
        synchronous: False: the default set includes strategies with stale weights. True: refuse the names of such
            strategies. None: neither.
        known: names of all strategies.
        unnamed: names of the strategies from which the default set is taken.
        where: prefix of the expected names in the error message.

    Raises:
        InputError: an unknown strategy, or an asynchronous one if only synchronous ones are allowed.
    """
    exact = synchronous_strategies()
    for name in strategies:
        if name not in known:
            raise InputError("strategy", repr(name), f"{where}one of {', '.join(known)}", nearest(name, known))
        if synchronous and name not in exact:
            expected = f"one of {', '.join(one for one in known if one in exact)}"
            raise InputError("strategy", f"{name}, an asynchronous strategy", expected)
    return tuple(strategies) or tuple(name for name in unnamed if synchronous is False or name in exact)


def _range(pair: tuple[int, int]) -> str:
    return str(pair[0]) if pair[0] == pair[1] else f"{pair[0]} to {pair[1]}"
