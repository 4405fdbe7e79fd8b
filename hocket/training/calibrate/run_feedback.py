"""Comparison of a run with its plan's prediction.

It makes today's prediction, keeps measurements for the next plan, and lists mismatches. No torch.
"""

from collections.abc import Mapping
from math import isclose
from pathlib import Path

from hocket.errors import HocketError, InputError
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Plan, Predicted
from hocket.training.worker.monitor.listener import Listener, RunSummary
from hocket.training.worker.options import Options
from hocket.util.units import given_rate, show_seconds

# Swaps that take less than their link lets them by this factor did not go over it.
_QUICKER = 1.5
# Predictions of one plan that differ by less are one prediction, written and read.
_SAME = 1e-6


def predicted_now(plan: Plan, folder: Path | None, listener: Listener) -> Predicted | None:
    """Prediction of the plan with its current profile.

    If that does not exist, the prediction in the plan.

    Nothing, if groups were made of the devices that it was planned for: what it says is not of them.

    Arguments:
        folder: of the plan's file; None: its profile is not known.
    """
    if folder is None or not plan.profile:
        return plan.predicted
    from hocket.planning.load import opened

    then = plan.predicted
    try:
        known = opened(plan, folder)
        if known.updates.differences and (told := known.profile.loss_parts):
            listener.note(f"as the job was profiled, {told}")
        now = known.predicted
    except HocketError as error:  # no profile, or another one: that is no reason not to train
        if not isinstance(error, InputError) or error.place.rpartition(": ")[2] != "tensor":
            return then
        listener.note("nothing is predicted: the plan's groups are of another width than the devices of its profile")
        return None
    if then is None or isclose(now.iteration_s, then.iteration_s, rel_tol=_SAME):
        return then or now
    listener.note(
        f"the plan was changed since it was predicted: {show_seconds(now.iteration_s)} an iteration as it stands, "
        f"not {show_seconds(then.iteration_s)}"
    )
    return now


def keep_feedback(plan: Plan, path: Path, summary: RunSummary, listener: Listener) -> None:
    """Keep beside the plan what its run took, for the next one, or say why not."""
    if summary.iteration_s is None or not plan.profile:
        return
    from hocket.planning.load import opened
    from hocket.planning.predict.feedback import beside, check_like, learned_from

    peaks = {device: float(size) for device, size in summary.peak_memory_bytes.items()}
    try:
        profile = opened(plan, path.parent, path.name).profile
        check_like(plan, profile, summary.warm_steps, summary.optimizer, summary.dtype, summary.device_types)
        found = learned_from(plan, profile, summary.iteration_s, peaks, len(summary.losses), summary.swaps)
        found.save(beside(path))
    except InputError as error:  # whatever it is, it is no reason to fail after training
        listener.note(f"not kept for the next plan: {error.found}; expected {error.expected}")
        return
    listener.note(f"kept in {beside(path).name} for the next plan of this profile and cluster")


def note_amplification(plan: Plan, path: Path, options: Options, listener: Listener) -> None:
    """Report used against planned device time of a traced run.

    Only if the plan yields idle devices.
    """
    from hocket.planning.burst.amplification import amplification_of
    from hocket.planning.load import opened
    from hocket.program.trace.trace import Trace
    from hocket.strategies.base.strategy import yields_idle

    if options.trace is None or not plan.profile or not yields_idle(plan.strategy):
        return
    try:
        profile = opened(plan, path.parent, path.name).profile
        listener.note(f"amplification: {amplification_of(plan, profile, Trace.read(options.trace)).text}")
    except InputError as error:  # whatever it is, it is no reason to fail after training
        listener.note(f"amplification: not known; {error}")


def unlike_host_link(plan: Plan, swaps: Mapping[int, LinkSums]) -> str:
    """Note if swaps were faster than the cluster's host link allows.

    The note names the option that slows them down.

    Arguments:
        swaps: what they took, by device of the plan.
    """
    link, took = plan.cluster.host_link, sum(swaps.values(), LinkSums())
    if link is None or took.seconds * _QUICKER >= took.size_bytes / link.bandwidth_bytes_per_s:
        return ""
    expected = given_rate(link.bandwidth_bytes_per_s)
    had = given_rate(took.size_bytes / took.seconds) if took.seconds > 0 else "more"
    return (
        f"the plan is predicted with a link to the host of {expected} (host_link of its cluster), but swaps had {had} here: "
        f"measured and predicted are not of one machine. --host-link {expected} lets them wait as that link would"
    )
