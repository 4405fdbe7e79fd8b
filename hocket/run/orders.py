"""Orders: what a local worker is told when it is started, as a JSON file in the run's private folder."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hocket.files import parse_json, read_as, read_bytes
from hocket.run.loop import Options


@dataclass(frozen=True)
class Orders:
    """One worker's orders.

    Attributes:
        job: path of the job file; folder: the run's private folder, with the plan, the progress pages and the meeting file.
        parent: process id of the watcher; report_to: file handle for reports; control_from: file handle that ends with the watcher.
        cores: to stay on; none: wherever the system puts it.
    """

    job: str
    folder: str
    rank: int
    workers: int
    options: Options
    parent: int
    report_to: int
    control_from: int
    cores: tuple[int, ...] = ()

    __pydantic_config__: ClassVar[Any] = {"extra": "forbid"}

    @classmethod
    def read(cls, path: str | Path) -> "Orders":
        """Read orders strictly."""
        return read_as(cls, parse_json(read_bytes(path), str(path)), str(path))
