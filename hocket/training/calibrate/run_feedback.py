"""Comparison of a run with its plan's prediction.

It predicts the run with the current profile, keeps measurements for the next plan, and notes mismatches. This file does
not import torch.
"""

from collections.abc import Mapping, Sequence
from math import isclose

from hocket.errors import HocketError, InputError, RefusedError
from hocket.hardware.cluster import Cluster
from hocket.hardware.link_sums import LinkSums
from hocket.planning.plan import Predicted
from hocket.profiling.profile import CPU
from hocket.program.trace.chrome import read_trace
from hocket.training.run_plan import RunPlan
from hocket.training.worker.monitor.listener import Listener, RunSummary
from hocket.training.worker.options import Options
from hocket.util.units import given_rate, show_seconds

# Swaps that are faster than their link allows by this factor did not use that link. A simulated link whose bandwidth
# differs by this factor is another one; smaller differences come from fits of an earlier run.
_QUICKER = 1.5
# Smaller relative differences of a plan's predictions come from rounding in the file.
_SAME = 1e-6


def predicted_now(run_plan: RunPlan, listener: Listener) -> Predicted | None:
    """Predict the plan with its current profile, or return the prediction in the plan.

    Arguments:
        listener: receives notes.

    Returns:
        The prediction in the plan if the profile is missing. None if the plan's tensor-parallel size differs from the
        profile's, since the plan's prediction is then wrong.
    """
    then = run_plan.plan.predicted
    if not run_plan.has_profile:
        return then
    try:
        known = run_plan.loaded
        if known.updates.differences and (told := known.profile.loss_parts):
            listener.note(f"as the job was profiled, {told}")
        now = known.predicted
    except HocketError as error:  # a wrong profile does not prevent training
        if not isinstance(error, InputError) or error.place.rpartition(": ")[2] != "tensor":
            return then
        listener.note("no prediction: the plan's tensor-parallel size differs from its profile's")
        return None
    if then is None or isclose(now.iteration_s, then.iteration_s, rel_tol=_SAME):
        return then or now
    listener.note(
        f"the plan was changed after its prediction: {show_seconds(now.iteration_s)} an iteration now, "
        f"not {show_seconds(then.iteration_s)}"
    )
    return now


def keep_feedback(run_plan: RunPlan, options: Options, summary: RunSummary, listener: Listener) -> None:
    """Write the run's measurements beside the plan's file, for the next plan.

    If they cannot be used, the listener gets a note with the reason. A plan without a file is left alone.
    """
    plan, path = run_plan.plan, run_plan.path
    if path is None or summary.iteration_s is None or not plan.profile:
        return
    from hocket.planning.predict.feedback import beside, check_like, learned_from

    peaks = {device: float(size) for device, size in summary.peak_memory_bytes.items()}
    try:
        profile = run_plan.loaded.profile
        check_usual(options, summary.device_types, plan.cluster, plan.swap is not None)
        check_like(plan.cluster, profile, summary.warm_steps, summary.optimizer, summary.dtype, summary.device_types)
        found = learned_from(plan, profile, summary.iteration_s, peaks, len(summary.losses), summary.swaps)
        found.save(beside(path))
    except InputError as error:  # must not make a finished training fail
        listener.note(f"not kept for the next plan: {error.found}; expected {error.expected}")
        return
    listener.note(f"kept in {beside(path).name} for the next plan of this profile and cluster")


def check_usual(options: Options, device_types: Sequence[str], cluster: Cluster, swaps: bool) -> None:
    """Refuse a run with options under which it does not represent other runs of its plan.

    Arguments:
        device_types: device types of the workers.
        cluster: the plan's cluster.
        swaps: True for a plan that swaps.

    Raises:
        RefusedError: workers on CPUs had several threads, or a host link was simulated that is not the cluster's.
    """
    if options.threads != 1 and CPU in device_types:
        raise RefusedError("run", f"trained with {options.threads} threads a worker", "1, as for a profile")
    link = options.host_link_bytes_per_s
    if link is None or not swaps:
        return
    for device in range(cluster.devices):
        own = cluster.host_link_of(device)[0].bandwidth_bytes_per_s
        if not 1 / _QUICKER < link / own < _QUICKER:
            found = f"a simulated host link of {given_rate(link)}"
            raise RefusedError("run", found, f"{given_rate(own)}, as in the plan's cluster")


def note_amplification(run_plan: RunPlan, options: Options, listener: Listener) -> None:
    """Note the measured and planned amplification of a traced run.

    Amplification is device-seconds of an iteration, relative to one device with the same batch. Only plans that yield
    idle devices have it.
    """
    from hocket.planning.burst.amplification import amplification_of
    from hocket.strategies.base.strategy import yields_idle

    plan = run_plan.plan
    if options.trace is None or not plan.profile or not yields_idle(plan.strategy):
        return
    try:
        text = amplification_of(plan, run_plan.loaded.profile, read_trace(options.trace)).text
        listener.note(f"amplification: {text}")
    except InputError as error:  # must not make a finished training fail
        listener.note(f"amplification: not known; {error}")


def unlike_host_link(cluster: Cluster, swaps: Mapping[int, LinkSums]) -> str:
    """Return a note if swaps were faster than the cluster's host link allows.

    The note names the option that simulates the link. Otherwise the text is empty.

    Arguments:
        cluster: the plan's cluster.
        swaps: bytes and seconds of swaps, by device of the plan.
    """
    link, took = cluster.host_link, sum(swaps.values(), LinkSums())
    if link is None or took.seconds * _QUICKER >= took.size_bytes / link.bandwidth_bytes_per_s:
        return ""
    expected = given_rate(link.bandwidth_bytes_per_s)
    had = given_rate(took.size_bytes / took.seconds) if took.seconds > 0 else "more"
    return (
        f"the plan is predicted for a host link of {expected} (host_link of its cluster), but swaps had {had} here, so "
        f"measurement and prediction are not of the same machine. --host-link {expected} simulates that link"
    )
