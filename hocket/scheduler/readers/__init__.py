"""Readers for workload, throughput and cluster files; one module per format.

Nothing is evaluated, and sizes are bounded. Errors name the file, the line and the field. `read_workload` and
`read_throughputs` choose the reader by the file's name or first bytes. A file is read once, so it may be a pipe.
"""

from pathlib import Path

from hocket.errors import InputError
from hocket.scheduler.model.throughputs import ThroughputTable
from hocket.scheduler.readers import (
    gavel_throughputs,
    gavel_trace,
    philly_csv,
    sia_csv,
    throughputs_json,
    workload_json,
)
from hocket.scheduler.readers._rows import MOST_BYTES
from hocket.scheduler.simulation.workload import Workload
from hocket.util.files import read_bytes, read_text

_TABLES = {gavel_trace: ".trace", workload_json: ".json"}
_CSV = {philly_csv: philly_csv.REQUIRED, sia_csv: sia_csv.REQUIRED}


def read_workload(path: str | Path, table: ThroughputTable | None = None, seed: int = 0) -> Workload:
    """Read the jobs of a file.

    Formats: Hocket's or Gavel's JSON, Gavel's .trace, Sia's or a Philly-style CSV; each may be gzipped.

    Arguments:
        table: throughput table that defines the job types; the packaged one by default.
        seed: seed for values that a format lacks (a Philly-style CSV has no job types).

    Raises:
        InputError: no such file, an unknown format, or an invalid row.
    """
    table = throughputs_json.packaged() if table is None else table
    if Path(path).is_dir() or not Path(path).exists():
        read_bytes(path)  # raises an error that says which
    name = Path(path).name.removesuffix(".gz")
    for reader, ending in _TABLES.items():
        if name.endswith(ending):
            return reader.read(path, table)
    if not name.endswith(".csv"):
        step = "Give the jobs file first, then the workers file." if name.endswith((".yaml", ".yml")) else ""
        raise InputError(
            str(path), f"the name {name!r}", "a file that ends in .json, .trace or .csv (or these and .gz)", step
        )
    content = read_text(path, MOST_BYTES)
    head = {cell.strip() for cell in content.partition("\n")[0].split(",")}
    if set(philly_csv.REQUIRED) <= head:
        return philly_csv.parse(content, path, table, seed)
    if set(sia_csv.REQUIRED) <= head:
        return sia_csv.parse(content, path, table)
    known = " or ".join(",".join(columns) for columns in _CSV.values())
    raise InputError(f"{path}, line 1", ",".join(sorted(head))[:80] or "nothing", f"a header with {known}")


def read_throughputs(path: str | Path | None) -> ThroughputTable:
    """Read a throughput table, Hocket's or Gavel's; the packaged one by default.

    Raises:
        InputError: no such file, or an invalid value, with the file and the field.
    """
    if path is None:
        return throughputs_json.packaged()
    content = read_bytes(path, MOST_BYTES)
    ours = throughputs_json.FORMAT.encode() in content[:4096]
    return (throughputs_json if ours else gavel_throughputs).parse(content, str(path))
