"""Verdict: whether a pipeline is worth it, and by how much the best plan of the other kind is behind.

Rules of this file: both kinds are searched as far as it takes to know the best of each; a pipeline is not taken by habit. Kernels that
must be launched, products that are small and links inside of a server are in every plan's seconds (cost/, plan/mesh.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hocket.plan.candidates import TIE, Candidate, Search
from hocket.plan.mesh import Mesh
from hocket.plan.mesh_search import search_meshes
from hocket.plan.sized import SizedSearch, asked
from hocket.units import show_bytes

PLAIN, SHARDED, TENSOR, PIPELINE = (
    "plain data parallelism",
    "sharded data parallelism",
    "tensor parallelism",
    "a pipeline",
)


@dataclass(frozen=True)
class Verdict:
    """Which kind wins.

    Attributes:
        winner: PLAIN, SHARDED, TENSOR or PIPELINE. other: the best of the other kind, pipelines or not; empty where there is none.
        loses: by what share of the winner's seconds it takes longer. why: there is none of the other kind.
    """

    winner: str
    other: str = ""
    loses: float = 0.0
    why: str = ""

    @property
    def text(self) -> str:
        """In a sentence."""
        others = "no pipeline" if self.winner != PIPELINE else "nothing without stages"
        if not self.other:
            return f"{self.winner} wins: {others}{f', {self.why}' if self.why else ''}"
        name = "the best pipeline" if self.winner != PIPELINE else "the best without stages"
        if self.loses > TIE:
            return f"{self.winner} wins: {name}, {self.other}, takes {self.loses:.1%} more"
        much = f"{abs(self.loses):.1%} {'more' if self.loses >= 0 else 'less'}"
        return f"{self.winner} is as good as any: {name}, {self.other}, takes {much}, which counts as equal"


def of_sizes(found: SizedSearch, options: Mapping[str, Any]) -> Verdict:
    """Of the best plan of a model by its sizes.

    Arguments:
        options: of the search.
    """
    best = found.best
    wanted = best.mesh.depth == 1
    all_planes = found.planes(found.cluster, best.plane.sizes, **asked(options))
    others = search_meshes(all_planes, found.batch_size, only=lambda mesh: (mesh.depth > 1) == wanted)
    winner = _kind(best.mesh)
    if others.found:
        second = others.found[0]
        return Verdict(winner, second.label, second.iteration_s / best.iteration_s - 1)
    if others.nearest is None:
        return Verdict(winner, why="which this batch does not allow")
    miss = others.nearest
    return Verdict(winner, why=f"for {miss.mesh} needs {show_bytes(miss.bytes)} of {show_bytes(miss.capacity_bytes)}")


def _kind(mesh: Mesh) -> str:
    if mesh.depth > 1:
        return PIPELINE
    return PLAIN if mesh.tensor == 1 else TENSOR


def of_profile(found: Search) -> Verdict:
    """Of the best plan of a profiled job: the best of the other kind is among the candidates, where there is one."""
    best = found.best
    winner = _kind_of(best)
    wanted = winner != PIPELINE
    others = [one for one in found.candidates if (_kind_of(one) == PIPELINE) == wanted]
    if others:
        second = min(others, key=lambda one: one.iteration_s)
        return Verdict(winner, second.label, second.iteration_s / best.iteration_s - 1)
    names = ("data_parallel",) if winner == PIPELINE else ("flush", "gpipe", "interleaved", "pipedream", "two_bw")
    reasons = [one for one in found.refused if one.strategy in names]
    near = min(reasons, key=lambda one: (not one.missing_bytes, one.missing_bytes), default=None)
    return Verdict(winner, why=f"for {near.strategy} {near.config}: {near.reason}" if near else "none was considered")


def _kind_of(one: Candidate) -> str:
    if len(one.plan.stages) > 1:
        return PIPELINE
    if one.plan.shard != "none":
        return SHARDED
    return PLAIN if one.plan.tensor == 1 else TENSOR
