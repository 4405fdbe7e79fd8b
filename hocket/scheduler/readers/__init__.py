"""Readers: files of others as our nouns; one file a format. Nothing is evaluated, sizes are bounded.

What is wrong is told with the file, the line and the field. `read_workload` and `read_throughputs` pick
the reader by the file's name or how it begins. A file is read once, so it may be a pipe.
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
    """The jobs of a file: ours or Gavel's JSON, Gavel's .trace, Sia's or a Philly-style CSV; packed with gzip or not.

    Arguments:
        table: to know job types by; the packaged one if none is given.
        seed: for what a format leaves open (a Philly-style CSV has no job types).

    Raises:
        InputError: no such file, another format, or a wrong row.
    """
    table = throughputs_json.packaged() if table is None else table
    if Path(path).is_dir() or not Path(path).exists():
        read_bytes(path)  # tells which of the two
    name = Path(path).name.removesuffix(".gz")
    for reader, ending in _TABLES.items():
        if name.endswith(ending):
            return reader.read(path, table)
    if not name.endswith(".csv"):
        step = "Jobs come first, workers after them." if name.endswith((".yaml", ".yml")) else ""
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
    """The throughput table of a file, ours or Gavel's; the packaged one where none is named.

    Raises:
        InputError: no such file, or a wrong value, with the file and the field.
    """
    if path is None:
        return throughputs_json.packaged()
    content = read_bytes(path, MOST_BYTES)
    ours = throughputs_json.FORMAT.encode() in content[:4096]
    return (throughputs_json if ours else gavel_throughputs).parse(content, str(path))
