"""Measure how far a reader follows one thing through the package: functions, files, and returns to a file.

    python tools/flow.py            the table for this checkout; JSON
    python tools/flow.py --list     with every function, in the order of first calls

It follows these things while commands run in this process: a profile from capture to training, a plan from its file to
the engine, a job through the scheduler's core, and a plan that swaps. The job is followed twice: with its events alone,
and with the snapshots and leases that it is a part of.

A function counts if one of its arguments is the thing. Each function counts once, at its first call. In that order, a
return is a step to a file that was left before. A read of a property is no call. It is left out of the counts, because
a reader looks it up without leaving the place; the number of properties is printed separately.

Set PYTHONPATH to another checkout to measure that one.
"""

import argparse
import io
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

JOB = """
import torch
from torch import nn
from hocket import Job

def make_job():
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(128, 128) for _ in range(6)))
    data = [{"input": torch.randn(128), "target": torch.randn(128)} for _ in range(64)]
    loss = lambda output, target: nn.functional.mse_loss(output, target)
    return Job(model, loss, data, lambda parameters: torch.optim.Adam(parameters, lr=0.01), 8, name="flow")
"""
CLUSTER = """
name: one
device_type: cpu-core
levels: [{{name: machine, width: 1, bandwidth_bytes_per_s: 1.0e9, latency_s: 1.0e-5}}]
memory_bytes: {memory_bytes}
host_memory_bytes: 1.0e9
"""
ROOMY_BYTES, TIGHT_BYTES = 1e9, 9e5  # the second is less than the model's weights, gradients and optimizer state
WORKERS = "workers:\n- {name: v100, workers: 2}\n- {name: p100, workers: 2}\n- {name: k80, workers: 2}\n"


@dataclass
class Visits:
    """Functions that a thing visits, in the order of first calls.

    Attributes:
        names: names of the thing's classes.
        rooms: prefixes of the modules whose classes count.
        functions: file and name of each function and property.
        properties: which of them are properties.
    """

    names: frozenset[str]
    rooms: tuple[str, ...] = ("hocket.",)
    functions: dict[tuple[str, str], None] = field(default_factory=dict)
    properties: set[tuple[str, str]] = field(default_factory=set)

    def followed(self, value: object) -> bool:
        """True if a value is the thing, or a list, tuple or dictionary of such things."""
        if isinstance(value, list | tuple) and value and type(value) in (list, tuple):
            value = value[0]
        if type(value) is dict and value:
            value = next(iter(value.values()))
        kind = type(value)
        return kind.__name__ in self.names and kind.__module__.startswith(self.rooms)

    @property
    def files(self) -> list[str]:
        """Files in the order of visits; consecutive equal ones are one visit."""
        found: list[str] = []
        for file, name in self.functions:
            if found[-1:] != [file] and (file, name) not in self.properties:
                found.append(file)
        return found

    def row(self) -> dict[str, int]:
        """Numbers of functions, of properties, of files, and of returns to a file."""
        files, properties = self.files, len(self.properties)
        returns = len(files) - len(set(files))
        return {
            "functions": len(self.functions) - properties,
            "properties": properties,
            "files": len(set(files)),
            "returns": returns,
        }


@contextmanager
def following(visits: Visits) -> Iterator[None]:
    """Record the package's functions that have the thing among their arguments."""
    import hocket

    root = str(Path(hocket.__file__).parent) + os.sep

    def note(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(root) or code.co_name.startswith(("<", "__")):
            return
        arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        if any(visits.followed(frame.f_locals.get(name)) for name in arguments):
            visited = code.co_filename.removeprefix(root), code.co_qualname
            visits.functions.setdefault(visited)
            if is_property(frame):
                visits.properties.add(visited)

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]


def is_property(frame: FrameType) -> bool:
    """True if a call computes a property of its only argument."""
    code, name = frame.f_code, frame.f_code.co_name
    if code.co_argcount + code.co_kwonlyargcount != 1 or "self" not in frame.f_locals:
        return False
    kinds = type(frame.f_locals["self"]).__mro__
    return next((not callable(vars(kind)[name]) for kind in kinds if name in vars(kind)), False)


def run(*command: str) -> None:
    """Run a command of the package in this process.

    Raises:
        RuntimeError: the command failed.
    """
    from hocket.cli import main

    output, code = io.StringIO(), 0
    with redirect_stdout(output), redirect_stderr(output), suppress(SystemExit):
        code = main(list(command))
    if code:
        raise RuntimeError(f"hocket {' '.join(command)}: exit code {code}\n{output.getvalue()[-2000:]}")


def train(*command: str) -> None:
    """Train as the only worker of torchrun, so that the engine runs in this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place)
    try:
        run("train", *command, "--steps", "2")
    finally:
        for name in place:
            del os.environ[name]


def measured() -> dict[str, Visits]:
    """Follow all of them, in the current folder."""
    Path("job.py").write_text(JOB)
    Path("workers.yaml").write_text(WORKERS)
    for name, size in (("roomy", ROOMY_BYTES), ("tight", TIGHT_BYTES)):
        Path(f"{name}.yaml").write_text(CLUSTER.format(memory_bytes=size))
    profile = Visits(frozenset({"ModelProfile", "Captured"}))
    plans = frozenset({"Plan", "LoadedPlan", "PlannedRun", "_Asked", "Opened", "Executable"})  # and older names
    plan, swapped = Visits(plans), Visits(plans)
    rooms = ("hocket.scheduler.", "hocket.cluster.")
    events = frozenset({"Job", "JobArrived", "Progressed", "JobFinished"})
    job = Visits(events, rooms)
    leased = Visits(events | {"Lease", "Snapshot", "Allocation"}, rooms)
    with following(profile):
        run("profile", "job.py", "-o", "profile.json")
    with following(profile):
        run("plan", "profile.json", "roomy.yaml", "-B", "8", "-o", "plan.yaml", "-s", "data_parallel")
    with following(profile):
        train("job.py", "plan.yaml")
    with following(plan):
        train("job.py", "plan.yaml")
    with following(swapped):
        run("plan", "profile.json", "tight.yaml", "-B", "8", "-o", "swapped.yaml", "-s", "harmony")
    with following(swapped):
        train("job.py", "swapped.yaml")
    run("cluster", "generate", "static-single", "-o", "jobs.json", "--jobs", "4", "--seed", "1")
    with following(job):
        run("cluster", "simulate", "jobs.json", "workers.yaml")
    with following(leased):
        run("cluster", "simulate", "jobs.json", "workers.yaml")
    return {
        "profile": profile,
        "plan": plan,
        "scheduler job": job,
        "job with snapshots and leases": leased,
        "swapping plan": swapped,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--list", action="store_true", help="also list the functions")
    given = parser.parse_args()
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            found = measured()
        finally:
            os.chdir(before)
    for name, visits in found.items():
        print(json.dumps({"followed": name, **visits.row()}))
        if given.list:
            print("\n".join(f"    {file}  {function}" for file, function in visits.functions))


if __name__ == "__main__":
    main()
