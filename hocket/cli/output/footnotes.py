"""Remarks below a table of scheduling policies; equal remarks are merged."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hocket.scheduler.model.worker_types import WorkerType


def of_deadlines(policy: str, any_slo: bool) -> list[str]:
    """Return a remark if the policy uses SLOs and no job has an SLO.

    Arguments:
        policy: spelling of the policy.
        any_slo: True if a job has an SLO.
    """
    none = policy.partition(":")[0] == "min_cost_slo" and not any_slo
    return ["no job has an SLO, so the policy is the same as min_cost"] if none else []


def of_costs(types: "Sequence[WorkerType]") -> list[str]:
    """Return a remark if worker types have no price.

    Arguments:
        types: worker types without another remark on their price.
    """
    free = [own.name for own in types if own.workers and not own.price_usd_per_hour]
    return [f"no price for {', '.join(free)}: counted as 0"] if free else []


def once(told: Sequence[tuple[str, Sequence[str]]]) -> list[str]:
    """Format remarks as lines "SUBJECT: REMARK".

    A remark that all of several subjects have becomes one line without a subject.

    Arguments:
        told: (subject, remarks), such as the name of a policy and the remarks on its run.
    """
    lines: list[str] = []
    for who, texts in told:
        for text in texts:
            of_all = len(told) > 1 and all(text in other for _, other in told)
            lines.append(text if of_all else f"{who}: {text}")
    return list(dict.fromkeys(lines))
