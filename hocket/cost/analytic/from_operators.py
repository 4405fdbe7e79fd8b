"""Estimated profile of a job on a device type, from the operators of its layers.

The result is an ordinary profile with estimated seconds. The operators come from a sketch
(profiling/operators_only.py).

Rules of this file: nothing is allocated and nothing runs. The head of `cost/kernels.py` describes the cost of
operators.
"""

from collections.abc import Sequence
from dataclasses import replace

from hocket.cost.analytic.calibration import Calibration, calibrated_s
from hocket.cost.kernels import check_rate, moving_s
from hocket.hardware.device_type import DeviceType
from hocket.profiling.layer import Layer
from hocket.profiling.operators_only import LayerOperators, Sketch
from hocket.profiling.profile import WORKED_OUT, ModelProfile


def costed(sketch: Sketch, device: DeviceType, calibration: Calibration | None = None) -> ModelProfile:
    """Estimate the profile of a job on a device type.

    Arguments:
        sketch: operators and bytes of the job's layers.
        calibration: factors of the device type, fitted to a measured profile; None for 1.

    Raises:
        InputError: the device type has no rate for the model's data type, or the calibration is for another device
            type.
    """
    plain = sketch.profile
    check_rate(device, plain.dtype)
    if calibration is not None:
        calibration.check(device)
    trained = sum(layer.gradients_bytes for layer in _once(plain)) or 1.0
    slower = calibration.step if calibration else 1.0
    step_s = slower * moving_s(sum(one.moved_bytes for one in sketch.step), device)
    layers = []
    for k, layer in enumerate(plain.layers):
        own = [at[k] for at in sketch.work]
        one_step_s = step_s * layer.gradients_bytes / trained
        layers.append(_layer(layer, own, device, plain.dtype, one_step_s, calibration))
    taught = (f"calibrated by {calibration.source}",) if calibration else ()
    return replace(
        plain,
        device_type=device.name,
        layers=tuple(layers),
        source=f"{plain.source} for {device.name}",
        notes=(*plain.notes, WORKED_OUT, *taught),
        step_call_s=slower * device.launch_s * len(sketch.step) / sketch.parameters,
    )


def _once(profile: ModelProfile) -> Sequence[Layer]:
    """Layers, except layers with parameters that all appear in earlier layers.

    The optimizer steps each parameter once.
    """
    seen: set[str] = set()
    found = []
    for layer in profile.layers:
        if not layer.parameters or not seen.issuperset(layer.parameters):
            found.append(layer)
        seen.update(layer.parameters)
    return found


def _layer(
    layer: Layer,
    own: Sequence[LayerOperators],
    device: DeviceType,
    dtype: str,
    step_s: float,
    calibration: Calibration | None,
) -> Layer:
    forward, backward = (calibration.forward, calibration.backward) if calibration else (None, None)
    return replace(
        layer,
        forward_s=tuple(calibrated_s(work.forward, device, dtype, forward) for work in own),
        backward_s=tuple(calibrated_s(work.backward, device, dtype, backward) for work in own),
        step_s=step_s,
        copy_s=moving_s(2 * layer.gradients_bytes, device),
    )
