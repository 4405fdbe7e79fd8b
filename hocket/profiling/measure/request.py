"""Measurement request: the device, its surroundings and the effort of a measurement.

Rules of this file: a request is the same for all jobs. Values that need neither job nor model are checked here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from hocket.errors import InputError
from hocket.profiling.job.job import check_device
from hocket.profiling.measure.background_load import Start, new_process
from hocket.profiling.measure.core_time import on_core_s
from hocket.profiling.measure.timing import ROUNDS
from hocket.profiling.measure.worker_costs import Clock

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class MeasureRequest:
    """Settings of a measurement of a job on one device.

    Attributes:
        device: the device, such as "cpu" or "cuda".
        device_type: device type of the profile, by default "cpu-core" or the CUDA device's name.
        budget_s: approximate seconds of measurement over all sizes; each size gets at least 2 iterations a round.
        rounds: rounds through all sizes, at least 1. A slow spell of the machine then affects all sizes.
        threads: threads of one worker, on a CPU.
        neighbours: number of companions that train the job meanwhile on a CPU, as the other workers of a machine will
            (see `hocket.profiling.measure.background_load.usual_neighbours`). A job without a file is measured alone,
            and a note says so.
        max_layers: upper bound of the number of layers.
        progress: called with (done, total, what), in steps.
        clock: clock in seconds, for CPUs. By default it leaves out waits of this thread for a core.
        compile: backend of torch.compile to measure too, in addition to eager execution; "" for none.
        start: starts a companion.
    """

    device: str | torch.device = "cpu"
    device_type: str | None = None
    budget_s: float = 40.0
    rounds: int = ROUNDS
    threads: int = 1
    neighbours: int = 0
    max_layers: int = 64
    progress: Progress | None = None
    clock: Clock = on_core_s
    compile: str = ""
    start: Start = new_process

    def tell(self, done: int, total: int, what: str) -> None:
        """Call `progress`, if there is one, with finished steps, all steps, and the present step in words."""
        if self.progress is not None:
            self.progress(done, total, what)

    def place(self) -> torch.device:
        """Return the device, after checking that the request fits it.

        Raises:
            InputError: the device is unknown or absent, or neighbours do not fit it.
        """
        check_device(str(self.device))
        place = torch.device(self.device)
        if place.type == "cuda" and not torch.cuda.is_available():
            found = f"{str(self.device)!r}, but torch sees no GPU with CUDA on this machine"
            raise InputError("device", found, "'cpu', or a machine with a CUDA GPU and a CUDA build of torch")
        if self.neighbours < 0 or (self.neighbours and place.type != "cpu"):
            raise InputError("neighbours", f"{self.neighbours} with device {self.device}", ">= 0, and 0 for a GPU")
        return place


USUAL_REQUEST = MeasureRequest()
