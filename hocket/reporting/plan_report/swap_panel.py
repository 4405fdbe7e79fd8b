"""Swap panel: memory on hosts and in transfer, and the deepest possible models."""

from collections.abc import Sequence
from dataclasses import dataclass

from hocket.planning.plan import Plan
from hocket.planning.swapping.max_depth import MaxDepth
from hocket.program.trace.trace import Trace
from hocket.reporting.charts.memory import MemoryCurve, memory_curves
from hocket.reporting.charts.window import DrawnTrace, Window
from hocket.reporting.plan_report.facts import Table
from hocket.simulation.swapping.host_memory import HostCourse, Series
from hocket.util.units import show_bytes

SHOWN = 8  # maximum number of devices that are drawn


@dataclass(frozen=True)
class SwapPanel:
    """Drawings of swapped bytes over time, by device.

    Attributes:
        hosts: bytes of the device's values in host memory.
        moving: bytes in transfer between device and host.
        rest: number of devices that are not drawn.
    """

    hosts: tuple[MemoryCurve, ...]
    moving: tuple[MemoryCurve, ...]
    rest: int


def swap_panel(plan: Plan, swapped: HostCourse | None, window: Window) -> SwapPanel | None:
    """Draw swapped bytes over a window of the simulated run.

    Arguments:
        swapped: bytes over time on hosts and in transfer; None for a plan that does not swap.

    Returns:
        None if `swapped` is None.
    """
    if swapped is None:
        return None
    devices = tuple(sorted(swapped.host))
    limits = {} if plan.swap is None or plan.swap.host_bytes is None else dict.fromkeys(devices, plan.swap.host_bytes)

    def curves(series: dict[int, Series], capacity: dict[int, float]) -> tuple[MemoryCurve, ...]:
        record = DrawnTrace(Trace.of((), series), window)
        return memory_curves(record, None, window.seconds, devices[:SHOWN], capacity, {})

    return SwapPanel(curves(swapped.host, limits), curves(swapped.moving, {}), max(0, len(devices) - SHOWN))


def largest_table(found: Sequence[MaxDepth], dtype: str) -> Table:
    """Build a table of the deepest model that each strategy can train.

    Arguments:
        dtype: data type of the weights, such as "bfloat16".
    """
    itemsize = {"float64": 8, "float16": 2, "bfloat16": 2}.get(dtype, 4)
    most = max((one.weights_bytes for one in found), default=0.0)
    rows = tuple(
        (
            one.strategy,
            f"{'at least ' if one.more else ''}{one.blocks:,}" if one.blocks else "none",
            f"{one.layers:,}" if one.blocks else "",
            f"{one.weights_bytes / itemsize / 1e6:,.4g} million" if one.blocks else "",
            show_bytes(one.weights_bytes) if one.blocks else "",
            one.config,
            one.limit,
            "",
        )
        for one in found
    )
    columns = ("strategy", "blocks", "layers", "parameters", "weights", "as", "limit", "beside each other")
    shares = tuple(one.weights_bytes / most if most else 0.0 for one in found)
    return Table(columns, rows, (1, 2, 3, 4), shares)
