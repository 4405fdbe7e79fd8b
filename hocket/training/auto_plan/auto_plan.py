"""Plan a training run without a plan file: profile the job, measure the links, search for the fastest plan.

Everything is kept in the folder `.hocket` beside the job, and found again by its content (kept_files.py): the profile
by the job, the links by the machine, the plan by both. If nothing has changed, a run begins at once. This file does not
import torch. It imports the planner only when the fork server is already loading torch.
"""

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hocket.errors import InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.profiling.job.job import Job
from hocket.profiling.job.job_file import check_job_file
from hocket.profiling.measure.stopwatch import SPENT
from hocket.profiling.profile import ModelProfile
from hocket.training.auto_plan.kept_files import FOLDER, KeptFiles, key_in, key_of
from hocket.training.auto_plan.profile_job import Progress, profile_job
from hocket.training.auto_plan.profile_request import ProfileRequest, machine, versions
from hocket.training.launch.environment import MAX_LOCAL_WORKERS
from hocket.training.launch.worker_spec import JobSpec
from hocket.util.files import check_folder_to_write
from hocket.util.units import show_count, show_seconds

if TYPE_CHECKING:
    from hocket.planning.plan import Plan
    from hocket.planning.search.result import Search

LINKS_BUDGET_S = 1.5
LINKS_EFFORT = 0.5
DEFAULT_WORKERS = 2

Say = Callable[[str], None]


@dataclass(frozen=True)
class AutoPlanRequest:
    """Request for a plan of a job on local workers.

    Attributes:
        workers: number of workers.
        threads: threads of each worker.
        again: True to measure and plan again, whatever is kept.
        all_workers: True for the fastest plan that uses all workers, which torchrun has started; False for the fastest,
            which may use fewer.

    Raises:
        InputError: a number is too small, or there are more workers than a run starts on one machine.
    """

    workers: int = DEFAULT_WORKERS
    threads: int = 1
    again: bool = False
    all_workers: bool = False

    def __post_init__(self) -> None:
        for name, value in (("workers", self.workers), ("threads", self.threads)):
            if value < 1:
                raise InputError(name, str(value), ">= 1")
        if self.workers > MAX_LOCAL_WORKERS:
            step = "Plan for several machines with a cluster file, and start the training with torchrun."
            raise InputError("workers", str(self.workers), f"at most {MAX_LOCAL_WORKERS} on one machine", step)


@contextmanager
def auto_plan(
    job: Job | str | Path, request: AutoPlanRequest, say: Say, progress: Progress | None = None
) -> Iterator[Path]:
    """Yield the path of a plan for a job, with its profile beside it; measure and plan what is not kept.

    If nothing can be written beside the job, the files are valid inside the context only.

    Arguments:
        say: called with each line for people.
        progress: called with (done, total, what) during measurements and the search.

    Raises:
        InputError: the job cannot be loaded or measured, too few or too many workers, or no plan fits.
    """
    spec = JobSpec.of(job if isinstance(job, Job) else check_job_file(job))
    folder = Path(spec.path).parent / FOLDER
    with tempfile.TemporaryDirectory(prefix="hocket-plan-") as unkept:
        written = folder
        try:
            check_folder_to_write(folder, str(folder))
        except InputError as error:
            # Training needs no folder beside the job: its code may be mounted read-only.
            written = Path(unkept)
            say(f"nothing is kept for the next run, because of {error.place}: {error.found}")
        yield _Steps(spec, request, KeptFiles(folder, written), say, progress).plan()


class _Steps:
    """The steps to a plan: profile, links, search.

    Arguments:
        kept: folders of kept files.
    """

    def __init__(
        self, spec: JobSpec, request: AutoPlanRequest, kept: KeptFiles, say: Say, progress: Progress | None
    ) -> None:
        self._spec, self._request, self._kept = spec, request, kept
        self._say, self._progress = say, progress

    def plan(self) -> Path:
        """Return the path of the plan, kept or new."""
        start_s = time.perf_counter()
        profile_path, profiled = self._profile()
        from hocket.planning.plan import Plan

        links_path, measured = self._links()
        profile, cluster = ModelProfile.read(profile_path), Cluster.read(links_path)
        path = self._plan(profile, profile_path, cluster, links_path)
        known = Plan.read(path)
        predicted = f", {show_seconds(known.predicted.iteration_s)} a step predicted" if known.predicted else ""
        origin = "kept from an earlier run" if not (profiled or measured) else f"after {_since(start_s)}"
        self._say(f"plan: {_told(known)}{predicted} ({origin}; {_shown(path)})")
        return path

    def _profile(self) -> tuple[Path, bool]:
        """Return the profile's path, and True if it was measured."""
        request = ProfileRequest(
            self._spec,
            self._request.workers,
            self._request.threads,
            folder=str(self._kept.folder),
            written=str(self._kept.written),
            again=self._request.again,
        )
        start_s = time.perf_counter()
        found = profile_job(request, self._progress)
        self._tell_damaged(found.damaged)
        if found.measured:
            profile = ModelProfile.read(found.path)
            spent = next((note for note in profile.notes if note.startswith(SPENT)), "")
            layers = show_count(len(profile.layers), "layer")
            self._say(f"profile: {layers}, microbatches of {_listed(profile.microbatch_sizes)}, {_since(start_s)}")
            if spent:
                self._say(f"         {spent}")
        return found.path, found.measured

    def _links(self) -> tuple[Path, bool]:
        """Return the path of the cluster file, and True if the links were measured."""
        request = self._request
        key = key_of({"workers": request.workers, "threads": request.threads, **machine(), **versions()})
        path = None if request.again else self._find("links", key, Cluster.read)
        if path is not None:
            return path, False
        from hocket.training.calibrate.local_links import measure_local

        start_s = time.perf_counter()
        if self._progress is not None:
            self._progress(0, 0, "links")
        cluster = measure_local(request.workers, request.threads, LINKS_BUDGET_S, effort=LINKS_EFFORT)
        level = cluster.levels[0]
        figures = f"{level.bandwidth_bytes_per_s / 1e9:.2f} GB/s, {show_seconds(level.latency_s)} latency, "
        self._say(
            f"links: {show_count(request.workers, 'worker')}, {figures if request.workers > 1 else ''}{_since(start_s)}"
        )
        return self._kept.keep("links", key, cluster.to_yaml(), ".yaml"), True

    def _plan(self, profile: ModelProfile, profile_path: Path, cluster: Cluster, links_path: Path) -> Path:
        """Return the path of the plan; search for it if it is not kept."""
        from hocket.planning.plan import Plan

        decides = {"profile": key_in(profile_path), "links": key_in(links_path), "batch": profile.batch_size}
        key = key_of(decides | ({"all_workers": True} if self._request.all_workers else {}))
        path = None if self._request.again else self._find("plan", key, Plan.read)
        if path is not None:
            kept = Plan.read(path)
            if kept.profile_digest == profile.digest and kept.cluster == cluster:
                return path
        from hocket.planning.search.request import PlanRequest
        from hocket.planning.search.search import search

        found = search(
            profile,
            cluster,
            PlanRequest(profile.batch_size),
            profile_path=Path(os.path.relpath(profile_path, self._kept.written)).as_posix(),
            progress=self._progress,
        )
        self._say(f"search: {show_count(found.considered, 'choice')}, {show_seconds(found.search_s)}")
        best = found.best.plan
        if self._request.all_workers:
            best = _with_all(found, self._request.workers)
        return self._kept.keep("plan", key, best.to_yaml(), ".yaml")

    def _find(self, kind: str, key: str, read: Callable[[Path], object]) -> Path | None:
        before = len(self._kept.damaged)
        path = self._kept.find(kind, key, ".yaml")
        self._tell_damaged(tuple(self._kept.damaged[before:]))
        if path is not None:
            try:
                read(path)
            except InputError:  # written by another version of Hocket
                return None
        return path

    def _tell_damaged(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._say(f"{FOLDER}/{name} is damaged or was edited; a new one is made")


def _with_all(found: "Search", workers: int) -> "Plan":
    """Return the best plan of a search that uses all workers.

    Raises:
        RefusedError: all plans use fewer workers.
    """
    for one in found.candidates:
        if len(one.plan.worker_devices) == workers:
            return one.plan
    step = "Start fewer workers, or plan with `hocket plan` and name the plan file."
    raise RefusedError("workers", f"{workers}, and only plans with fewer", "a plan that uses all of them", step)


def _told(plan: "Plan") -> str:
    """Describe a plan in some words: strategy, stages, workers and microbatches."""
    workers = len(plan.worker_devices)
    stages = "" if len(plan.stages) == 1 else f" with {len(plan.stages)} stages"
    return f"{plan.strategy}{stages} on {show_count(workers, 'worker')}, microbatches of {plan.microbatch_size}"


def _listed(sizes: tuple[int, ...]) -> str:
    return ", ".join(map(str, sizes))


def _since(start_s: float) -> str:
    return show_seconds(time.perf_counter() - start_s)


def _shown(path: Path) -> str:
    """Return a path relative to the working directory, if it is inside."""
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
