"""`hocket schema`: the JSON Schema of a file format, for editors."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer


class Format(StrEnum):
    """A file format that has a schema."""

    PLAN = "plan"
    CLUSTER = "cluster"
    PROFILE = "profile"
    JOBS = "jobs"


def schema(kind: Annotated[Format, typer.Argument(help="The file format: plan, cluster, profile or jobs.")]) -> None:
    """Print the JSON Schema of a file format.

    An editor uses it to complete keys and to mark wrong ones.

    Example: hocket schema cluster > cluster.schema.json

    In a YAML file: # yaml-language-server: $schema=cluster.schema.json
    """
    from hocket.cli.output.tables import print_json

    print_json(_SCHEMAS[kind]())


def _plan() -> dict[str, Any]:
    from hocket.planning.plan import Plan
    from hocket.util.json_schema import json_schema

    return json_schema(Plan, "A plan of Hocket", amounts=True)


def _cluster() -> dict[str, Any]:
    from hocket.hardware.cluster import Cluster
    from hocket.util.json_schema import json_schema

    return json_schema(Cluster, "A cluster file of Hocket", amounts=True)


def _profile() -> dict[str, Any]:
    from hocket.profiling.profile import ModelProfile
    from hocket.util.json_schema import json_schema

    return json_schema(ModelProfile, "A profile of Hocket", amounts=False)


def _jobs() -> dict[str, Any]:
    from hocket.scheduler.simulation.workload import FORMAT, Workload
    from hocket.util.json_schema import json_schema

    found = json_schema(Workload, "Jobs for a shared cluster of Hocket", amounts=False)
    found["properties"] = {"format": {"const": FORMAT}, **found["properties"]}
    found["required"] = ["format", *found["required"]]
    return found


_SCHEMAS: dict[Format, Callable[[], dict[str, Any]]] = {
    Format.PLAN: _plan,
    Format.CLUSTER: _cluster,
    Format.PROFILE: _profile,
    Format.JOBS: _jobs,
}
