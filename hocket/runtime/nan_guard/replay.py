"""Replay of a step with a non-finite number.

At the end of a segment, workers exchange the findings of their guards and run the step of the first finding again.
Every worker makes the same calls in the same order. No worker steps in a replay.

Devices that did not know of the finding may have stepped before the run ended. So a replay can miss a fault that
rounding or a single update removes. The error then says so.
"""

from collections.abc import Callable

from hocket.errors import HocketError
from hocket.runtime.engine.distributed import Worker
from hocket.runtime.kv_exchange import KVExchange
from hocket.runtime.nan_guard.guard import Finding
from hocket.runtime.nan_guard.inspector import Fact
from hocket.runtime.nan_guard.not_finite import not_finite, origin
from hocket.runtime.progress.progress_observer import Watched
from hocket.runtime.progress.segments import RunSegment

_NOT_AGAIN = "a replay of this step, with the weights that each device has now, was finite"


def check_guards(engine: Worker, board: KVExchange, watched: Watched, newest: Callable[[], str | None]) -> None:
    """Raise an error if the guard of any worker has a finding.

    This is a collective call of all workers.

    Arguments:
        watched: this worker's observer.
        newest: returns the path of the newest checkpoint of this run, for the error.

    Raises:
        NotFinite: the same error on every worker. It names the origin if a replay of the step shows it.
    """
    own = engine.device.guard.found
    shared = board.share([own.step, own.text] if own is not None else None)
    found = [Finding(*fact) for fact in shared if fact]
    if not found:
        return
    # A non-finite loss precedes the gradients that it makes non-finite. The worker of the last stage reports it.
    first = min(found, key=lambda one: (one.step, not one.text.startswith("the loss")))
    try:
        where = _where(engine, board, watched, first)
    except HocketError:
        raise
    except Exception as error:  # the model's code may fail on such numbers
        where = f"the search for the origin failed: {type(error).__name__}: {error}"
    raise not_finite(first.step, first.text, where, newest(), can_skip=engine.program.rule.synchronous)


def _where(engine: Worker, board: KVExchange, watched: Watched, first: Finding) -> str:
    """Run one step again, check all its tensors, and describe the origin."""
    inspector, pace = engine.device.inspect(), watched.pace
    periods = pace.periods_for(1)
    watched.again(RunSegment(first.step, pace.steps(periods) or 1, 0, periods))
    engine.run(periods, first.step * engine.layout.batch_size)
    shared = board.share([list(fact) for fact in inspector.facts.values()])
    place = origin(engine.device.captured, [Fact(*fact) for facts in shared for fact in facts])
    return _NOT_AGAIN if place is None else f"it arose in {place}"
