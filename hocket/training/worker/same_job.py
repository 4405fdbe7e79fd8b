"""Check that all workers train the same job.

Every worker creates the job itself. Weights that are drawn without a seed differ between the workers, and gradients of
different models would be averaged. Samples are compared in same_samples.py.
"""

import json

from hocket.errors import InputError
from hocket.profiling.job.job import Job
from hocket.profiling.job.likeness import SAME_EVERYWHERE, difference, likeness
from hocket.runtime.kv_exchange import KVExchange
from hocket.util.files import digest


def check_same_job(job: Job, board: KVExchange) -> None:
    """Compare the job of every worker with the job of the first worker. This is a collective call.

    Raises:
        InputError: settings or initial weights of the job differ. Every worker raises the same error.
    """
    if board.workers == 1:
        return
    own = likeness(job)
    # Usually all are equal to the last digit, and the store need not hold a fingerprint, which grows with the model.
    if len(set(board.share(digest(json.dumps(own).encode())))) == 1:
        return
    first = board.share(own if board.rank == 0 else None)[0]
    for rank, told in enumerate(board.share("" if board.rank == 0 else difference(first, own))):
        if told:
            found = f"another job on worker {rank} than on worker 0: {told}"
            raise InputError("job", found, "the same job on every worker", SAME_EVERYWHERE)
