"""The graph of imports, and its circles."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

from tests.package.helpers.sources import Import, module_of, name_of


def graph_of(imports: Sequence[Import], files: Sequence[Path]) -> dict[str, set[str]]:
    """Modules that each module imports; the package itself, which gathers the public names, is left out."""
    modules = {module_of(name_of(path)) for path in files if name_of(path) != "__init__.py"}
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for one in imports:
        home = module_of(one.path)
        inside = {f"{one.module}.{name}" for name in one.names}
        for target in inside & modules or {one.module} & modules:
            if home in graph and target != home:
                graph[home].add(target)
    return graph


def circles_of(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """Strongly connected modules, two or more: each is imported by way of every other one."""
    left, found = {name: set(targets) for name, targets in graph.items()}, []
    while True:
        try:
            TopologicalSorter(left).prepare()
        except CycleError as error:
            start = error.args[1][0]
            circle = reached(left, start) & reached(turned(left), start)
            found.append(circle)
            left = {name: targets - circle for name, targets in left.items() if name not in circle}
        else:
            return found


def turned(graph: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The graph with every arrow the other way."""
    found: dict[str, set[str]] = {name: set() for name in graph}
    for name, targets in graph.items():
        for target in targets:
            found[target].add(name)
    return found


def reached(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Modules that a module imports, directly or through others."""
    found: set[str] = set()
    left = [start]
    while left:
        new = graph.get(left.pop(), set()) - found
        found |= new
        left.extend(new)
    return found
