"""Plan of torchrun's workers without a plan file: the first worker makes it, and the others wait for its path.

The workers meet at torchrun's rendezvous before they train there. While the first worker measures, the others wait
idle: their processors are free for the measurement.
"""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from hocket.errors import HocketError, InputError, WorkerLost
from hocket.training.launch.torchrun_environment import GRACE_S, check_meeting, first_speaks, number_in

_POLL_S = 0.05
_PATH, _FAILED = "path", "failed"


def check_torchrun(workers: int | None) -> int:
    """Return the number of workers to plan for: all workers that torchrun has started.

    Arguments:
        workers: workers that the user asks for; None for all.

    Raises:
        InputError: torchrun runs on several machines, or has started another number of workers.
        SystemExit: in place of the InputError, on all workers except the first.
    """
    with first_speaks():
        check_meeting()
        started = number_in("WORLD_SIZE")
        here = number_in("LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in os.environ else started
        if here != started:
            step = (
                "Describe the machines in a cluster file, then `hocket profile` and `hocket plan`; name the plan file."
            )
            found = f"no plan file, and {here} of {started} workers on this machine"
            raise InputError("plan", found, "a plan file: without one, a plan is made for one machine", step)
        if workers not in (None, started):
            raise InputError("workers", f"{workers}, and {started} that torchrun has started", "the same number")
    return started


@contextmanager
def plan_of_first(make: Callable[[], AbstractContextManager[Path]], tell: Callable[[str], None]) -> Iterator[Path]:
    """Yield the path of the plan on every worker.

    Arguments:
        make: makes the plan; called by the first worker only.
        tell: called with a message for people if the workers wait for each other.

    Raises:
        HocketError: the first worker cannot make a plan; only the first worker raises it.
        SystemExit: on all other workers in this case, with the same exit code.
        WorkerLost: the first worker has ended.
    """
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]

    from hocket.training.launch.rendezvous import meet

    rank = number_in("RANK")
    # If this process hosts the store, the host lives until the workers have met again to train.
    store = PrefixStore("plan", meet(rank, number_in("WORLD_SIZE"), tell))
    if rank == 0:
        with ExitStack() as files:
            try:
                path = files.enter_context(make())
            except BaseException as error:
                store.set(_FAILED, str(error.exit_code if isinstance(error, HocketError) else 1))
                raise
            store.set(_PATH, str(path.absolute()))
            yield path
        return
    try:
        while not store.check([_PATH]):  # a blocking call would not see Ctrl-C
            if store.check([_FAILED]):
                code = int(store.get(_FAILED))
                time.sleep(GRACE_S)  # torchrun ends all workers when one exits, so the first worker must exit first
                raise SystemExit(code)
            time.sleep(_POLL_S)
        path = Path(store.get(_PATH).decode())
    except RuntimeError as error:
        raise WorkerLost(f"worker 0 ended before its plan was made: {error}") from error
    yield path
