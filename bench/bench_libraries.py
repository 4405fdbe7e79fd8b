"""Speed of libraries in place of our own code; docs/explanation/design.md, section "Libraries", has the figures.

    python bench/bench_libraries.py

Each line has a task, our milliseconds, the library's, and whether both give the same answer. Times are the best of
five. Without scipy its lines are left out (`pip install -e '.[bench]'`).
"""

import importlib.util
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout

import numpy as np

from hocket.cli.output.table import print_table
from hocket.profiling.profile import ModelProfile
from hocket.profiling.readers.pipedream import read as read_pipedream
from hocket.scheduler.solver.parametric.root_search import DemandAtPace, root
from hocket.scheduler.solver.queueing.assignment import Queues
from hocket.scheduler.solver.water_filling import bisection
from hocket.util import schema

EXAMPLE = "hocket/profiling/examples/vgg16.graph.txt"
SEED = 0


def best_ms(run: Callable[[], object], times: int = 1) -> float:
    """Milliseconds of one call: the best of five series."""
    found = []
    for _ in range(5):
        start_s = time.perf_counter()
        for _ in range(times):
            run()
        found.append((time.perf_counter() - start_s) / times)
    return min(found) * 1e3


def line(what: str, ours_ms: float, library_ms: float, same: bool | None) -> None:
    """Print one comparison."""
    print(
        f"{what:58}{ours_ms:10.3f}{library_ms:12.3f}   {'' if same is None else 'same' if same else 'DIFFERENT'}",
        flush=True,
    )


def import_ms(module: str) -> float:
    """Milliseconds to import a module in a new process after numpy."""
    script = f"import numpy, time; t = time.perf_counter(); import {module}; print((time.perf_counter() - t) * 1e3)"
    done = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True) for _ in range(3)
    ]
    return min(float(one.stdout) for one in done)


def assignment(jobs: int, workers: list[int], rng: np.random.Generator) -> None:
    """Compare the assignment of jobs to queue positions; the library needs one column per position of each worker."""
    from scipy.optimize import linear_sum_assignment

    needs_s = rng.lognormal(6, 1, (jobs, 1)) * rng.uniform(1, 10, (jobs, len(workers)))
    kinds = [k for k, count in enumerate(workers) for _ in range(-(-jobs // count) * count)]
    ranks = [1 + n // count for count in workers for n in range(-(-jobs // count) * count)]

    def library() -> float:
        cost = needs_s[:, kinds] * np.array(ranks)
        return float(cost[linear_sum_assignment(cost)].sum())

    same = bool(np.isclose(Queues(needs_s, workers).sum_s, library(), rtol=1e-9))
    ours_ms = best_ms(lambda: Queues(needs_s, workers))
    line(f"assignment, {jobs} jobs, {sum(workers)} workers", ours_ms, best_ms(library), same)


class Levels:
    """Levels that rise together, up to 1."""

    def __init__(self, rates: np.ndarray) -> None:
        self.rates = rates

    def at(self, rise: float) -> np.ndarray:
        """Levels after a rise."""
        return np.minimum(self.rates * rise, 1.0)


def roots(jobs: int, rng: np.random.Generator) -> None:
    """Compare root finding of sums over jobs: the rise of a water level, and the least pace."""
    from scipy.optimize import brentq

    path, prices = Levels(rng.random(jobs)), rng.random(jobs)
    rest = -float(prices @ path.at(0.7))
    ours = lambda: bisection._root(path, prices, rest, 5.0)  # type: ignore[arg-type]  # noqa: E731
    library = lambda: brentq(lambda rise: rest + float(prices @ path.at(rise)), 0.0, 5.0, xtol=1e-13, rtol=1e-12)  # noqa: E731
    line(f"rise of water, {jobs} jobs", best_ms(ours, 50), best_ms(library, 50), bool(np.isclose(ours(), library())))
    pace = DemandAtPace(rng.lognormal(6, 1, jobs), np.ones(jobs), np.zeros(jobs))
    worth = float(prices @ pace.demand(50.0))
    newton = lambda: root(lambda at: (float(prices @ pace.demand(at)) - worth, float(prices @ pace.change(at))), 1.0)  # noqa: E731
    bracketed = lambda: brentq(lambda at: float(prices @ pace.demand(at)) - worth, 1.0, 64.0, xtol=1e-13, rtol=1e-12)  # noqa: E731
    same = bool(np.isclose(newton(), bracketed()))
    line(f"least pace, {jobs} jobs", best_ms(newton, 50), best_ms(bracketed, 50), same)


def products(rows: int, columns: int, rng: np.random.Generator) -> None:
    """Compare the product of a sparse matrix and a vector, with and without building the library's matrix."""
    from scipy.sparse import csr_array

    count = 4 * columns
    at, to, values, x = (
        rng.integers(0, rows, count),
        rng.integers(0, columns, count),
        rng.random(count),
        rng.random(columns),
    )
    ours = lambda: np.bincount(at, values * x[to], rows)  # noqa: E731
    built = csr_array((values, (at, to)), shape=(rows, columns))
    same = bool(np.allclose(ours(), built @ x))
    ours_ms = best_ms(ours, 50)
    line(f"A x, {rows} rows, {columns} columns", ours_ms, best_ms(lambda: built @ x, 50), same)
    build_ms = best_ms(lambda: csr_array((values, (at, to)), shape=(rows, columns)) @ x, 5)
    line(f"A x, {rows} rows, {columns} columns, with building", ours_ms, build_ms, same)


def validation() -> None:
    """Compare validation of a profile's plain data with pydantic's strict mode on JSON text."""
    from pydantic import TypeAdapter

    data = json.loads(read_pipedream(EXAMPLE).to_json())
    ours, library = schema._adapter(ModelProfile), TypeAdapter(ModelProfile)
    strict = lambda: library.validate_json(json.dumps(data), strict=True)  # noqa: E731
    same = bool(ours.validate_python(data) == strict())
    line("a profile's schema, strict", best_ms(lambda: ours.validate_python(data), 20), best_ms(strict, 20), same)


def table() -> None:
    """Compare printing of a table with 200 rows and 60 characters width."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    names, rows = (
        ["layer", "kind", "ms", "notes"],
        [["transformer.h.0.attn", "Conv1D", "1,234", "by 0.9, recurrent"]] * 200,
    )

    def library() -> None:
        made = Table(*names, box=box.SIMPLE_HEAD)
        for row in rows:
            made.add_row(*row)
        Console(width=60, file=io.StringIO(), color_system=None).print(made)

    def ours() -> None:
        with redirect_stdout(io.StringIO()):
            print_table("", names, rows, right=(2,), width=60)

    line("a table of 200 rows", best_ms(ours), best_ms(library), None)


def main() -> None:
    """Print all comparisons."""
    print(f"{'':58}{'ours ms':>10}{'library ms':>12}")
    validation()
    table()
    print(f"import rich.table: {import_ms('rich.table, rich.console'):.0f} ms")
    if importlib.util.find_spec("scipy") is None:
        print("scipy is not installed: the rest is left out")
        return
    rng = np.random.default_rng(SEED)
    for jobs, workers in ((32, [4, 4, 4]), (64, [12, 12, 12]), (512, [36, 36, 36])):
        assignment(jobs, workers, rng)
    roots(256, rng)
    products(2000, 8000, rng)
    print(f"import scipy.optimize: {import_ms('scipy.optimize'):.0f} ms")


if __name__ == "__main__":
    main()
