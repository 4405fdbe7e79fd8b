"""Reference: plain single-process loops, compared with runs of plans.

There are no devices, no program and no stages here. The undivided model runs forward and backward on one microbatch
after the other. The plan's update rule determines the weights for each microbatch, and the microbatches of each update.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache

import torch
from torch import Tensor, nn

from hocket.planning.plan import Plan
from hocket.profiling.capture.capture import Captured, Stage
from hocket.profiling.job.derived_model.precision import masters as master_weights
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.learning_rates import scheduled
from hocket.profiling.job.loss_weight import loss_in, loss_weight, whole_loss
from hocket.program.rule import Rule
from hocket.runtime.stage.data_stream import Stream


@dataclass
class Trained:
    """Losses and weights of a training run.

    Attributes:
        losses: (microbatch, loss, weight in the mean of the batch), in order.
        weights: weights by global name.
    """

    losses: list[tuple[int, float, float]] = field(default_factory=list)
    weights: dict[str, Tensor] = field(default_factory=dict)


def step_losses(losses: Sequence[tuple[int, float, float]], microbatches: int) -> list[float]:
    """Compute the loss of each step, the weighted mean over its microbatches.

    Arguments:
        losses: (microbatch, loss, weight in the mean of the batch).
        microbatches: number of microbatches of a step.
    """
    found: dict[int, list[float]] = {}
    for microbatch, loss, weight in losses:
        sums = found.setdefault(microbatch // microbatches, [0.0, 0.0])
        sums[0] += loss * weight
        sums[1] += weight
    return [total / weight if weight else float("nan") for total, weight in found.values()]


def rule_loop(captured: Captured, plan: Plan, rule: Rule, microbatches: int, start: int = 0) -> Trained:
    """Train the undivided model on `microbatches` microbatches, with an update rule.

    The gradient of microbatch m uses version rule.version(s, m) of the parameters of stage s; with `naive` the backward
    uses the newest version. Update u of stage s applies the mean over the samples of rule.microbatches(s, u). It uses
    the learning rates of the training step that contains the first of these microbatches. If all stages update at one
    moment, one optimizer steps the whole model, as in one process; otherwise there is an optimizer per stage. For two
    waves see `_two_waves`. Gradients are clipped by the norm over all parameters, or over those of each stage
    (`Job.clip_grad_norm_over`). The only stage of a wave is the whole model.

    Arguments:
        start: number of samples trained on before.
    """
    if rule.kind == "averaged":
        return _two_waves(captured, plan, microbatches, start)
    stream = Stream(captured.job, plan.batches, start)
    sizes = {stream.samples(m) for m in range(plan.microbatches)}
    whole = {size: Stage(captured.for_size(size), range(len(captured.layers))) for size in sorted(sizes)}
    leaves = {n: p for n, p in next(iter(whole.values())).parameters().items() if p.requires_grad}
    for stage in whole.values():
        stage.bind(leaves)
    owner = _owners(captured, plan, leaves)
    names = [[n for n in leaves if owner[n] == s] for s in range(len(plan.stages))]
    apart = master_weights(captured.job, leaves, next(iter(leaves.values())).device)
    masters = {n: nn.Parameter(p.detach().clone()) for n, p in (apart or leaves).items()}
    stepped = [list(leaves), *([] for _ in names[1:])] if rule.at_one_moment else names
    optimizers = [scheduled(captured.job, {n: masters[n] for n in own}) if own else None for own in stepped]
    versions: list[list[dict[str, Tensor]]] = [[{n: masters[n].detach().clone() for n in own}] for own in names]
    trained = Trained()
    job = captured.job
    scaler = torch.amp.GradScaler("cpu", enabled=captured.loss_scaled)
    scaler.scale(torch.zeros(()))  # creates the scale

    @cache
    def weight_of(microbatch: int) -> float:
        samples = stream.samples(microbatch)
        return loss_weight(job, stream.batch(microbatch), samples) if callable(job.loss_weight) else samples

    def use(version_of: Callable[[int, int], int], microbatch: int) -> None:
        # Write in place, bypassing autograd, so that existing graphs use the new values, as `naive` requires.
        for s, own in enumerate(names):
            for n in own:
                leaves[n].data.copy_(versions[s][version_of(s, microbatch)][n])

    for m in range(microbatches):
        size = stream.samples(m)
        batch = stream.batch(m)
        use(rule.version, m)
        values = {name: batch[key] for key, name in captured.batch_names.items()}
        loss = whole[size].run(values, stream.seed_of(m))[captured.loss_tensor]
        loss, weight = whole_loss(job, loss, size), weight_of(m)
        trained.losses.append((m, float(loss.detach()) if weight else 0.0, weight))
        use(rule.backward_version, m)
        totals = [sum(weight_of(k) for k in rule.microbatches(s, rule.update(s, m))) for s in range(len(plan.stages))]
        # Scaling before or after rounding gives different results in short dtypes, and a model may compute in one
        # anywhere (softmax in float32 with weights of float64). So scale at the same place as a plan. With loss
        # weights, their sum is not known at that place.
        least = 1.0 if callable(job.loss_weight) else max(totals)
        start_with = loss.new_tensor(weight / least * scaler.get_scale())
        gradients = torch.autograd.grad(loss, list(leaves.values()), start_with, allow_unused=True)
        for (n, _), gradient in zip(leaves.items(), gradients, strict=True):
            s = owner[n]
            if gradient is not None:
                part = gradient * (least / totals[s]) if weight else torch.zeros_like(gradient)
                grad = masters[n].grad
                masters[n].grad = part if grad is None else grad + part
        overflow = False
        if captured.loss_scaled and (m + 1) % rule.batch[0] == 0:
            overflow = _unscaled(scaler, [optimizer.optimizer for optimizer in optimizers if optimizer is not None])
        by_stage = job.clip_grad_norm_over == "stage"  # by the norm of the model, all stages update at one moment
        for s, own in enumerate(names if by_stage else [list(leaves)]):
            if job.clip_grad_norm is not None and (m + 1) % rule.batch[s] == 0:
                torch.nn.utils.clip_grad_norm_([masters[n] for n in own], job.clip_grad_norm)
        for s, optimizer in enumerate(optimizers):
            if (m + 1) % rule.batch[s] == 0:
                if optimizer is not None:
                    first = rule.microbatches(s, rule.update(s, m))[0]
                    if not overflow:
                        optimizer.step(stream.position(first) // plan.batch_size)
                    optimizer.optimizer.zero_grad()
                versions[s].append({n: masters[n].detach().clone() for n in names[s]})
    trained.weights = {n: masters[n].detach() for n in masters}
    return trained


def _unscaled(scaler: torch.amp.GradScaler, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Divide gradients by the loss scale, and choose the scale of the next update.

    Returns:
        True if a gradient is not finite.
    """
    for optimizer in optimizers:
        scaler.unscale_(optimizer)
    scaler.update()
    groups = (group["params"] for optimizer in optimizers for group in optimizer.param_groups)
    return not all(p.grad.isfinite().all() for group in groups for p in group if p.grad is not None)


def _two_waves(captured: Captured, plan: Plan, microbatches: int, start: int) -> Trained:
    """Reference for `averaged` (Wavelet, figure 9): two replicas take turns.

    Each replica has its own optimizer. Iteration n belongs to replica n % 2. The replica computes the mean gradient of
    its half-batch, averages it with the mean gradient of the iteration before (Wavelet, equation 1; weighted by
    samples if the numbers differ), and steps. The result is the mean of both replicas' weights.
    """
    stream = Stream(captured.job, plan.batches, start)
    half, count = plan.microbatches // 2, len(captured.layers)
    replicas: list[dict[str, nn.Parameter]] = []
    stages: list[dict[int, Stage]] = []
    for _ in range(2):
        own = {stream.samples(m): Stage(captured.for_size(stream.samples(m)), range(count)) for m in range(2 * half)}
        found = next(iter(own.values())).parameters()
        mine = {n: nn.Parameter(p.detach().clone()) for n, p in found.items() if p.requires_grad}
        for stage in own.values():
            stage.bind(dict(mine))
            stage.bind({name: buffer.clone() for name, buffer in stage.buffers().items()})
        replicas.append(mine)
        stages.append(own)
    apart = [master_weights(captured.job, own, next(iter(own.values())).device) for own in replicas]
    masters = [
        {n: nn.Parameter(p.detach().clone()) for n, p in (long or own).items()}
        for long, own in zip(apart, replicas, strict=True)
    ]
    optimizers = [scheduled(captured.job, own) for own in masters]
    trained = Trained()
    before: dict[str, Tensor] = {}
    before_samples = 0
    for n in range(microbatches // half):
        wave = n % 2
        leaves, steps = replicas[wave], masters[wave]
        gradients: dict[str, Tensor] = {}
        samples = sum(stream.samples(m) for m in range(n * half, (n + 1) * half))
        for m in range(n * half, (n + 1) * half):
            size, batch = stream.samples(m), stream.batch(m)
            values = {name: batch[key] for key, name in captured.batch_names.items()}
            loss = stages[wave][size].run(values, stream.seed_of(m))[captured.loss_tensor]
            loss = whole_loss(captured.job, loss, size)
            trained.losses.append((m, float(loss.detach()), size))
            scale = loss.new_tensor(size / samples)
            given = torch.autograd.grad(loss, list(leaves.values()), scale, allow_unused=True)
            for name, gradient in zip(leaves, given, strict=True):
                if gradient is not None:
                    long = gradient.to(steps[name].dtype)
                    gradients[name] = gradients[name] + long if name in gradients else long
        together = samples + before_samples
        for name, gradient in gradients.items():
            part = gradient * (samples / together)
            steps[name].grad = before[name] * (before_samples / together) + part if before else part
        if captured.job.clip_grad_norm is not None:  # clip the gradients that the step uses
            torch.nn.utils.clip_grad_norm_(steps.values(), captured.job.clip_grad_norm)
        optimizers[wave].step(stream.position(n * half) // plan.batch_size)
        optimizers[wave].optimizer.zero_grad()
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(steps[name])
        before, before_samples = gradients, samples
    trained.weights = {n: (p.detach() + masters[1][n].detach()) / 2 for n, p in masters[0].items()}
    return trained


def _owners(captured: Captured, plan: Plan, leaves: dict[str, Tensor]) -> dict[str, int]:
    """Return the first stage that uses each parameter, by parameter name.

    With update rules that allow tied weights, all stages that share a parameter have the same version.
    """
    found: dict[str, int] = {}
    for s, cut in enumerate(plan.cuts(captured)):
        for layer in cut.layers:
            for name in captured.layers[layer].parameters:
                found.setdefault(name, s)
    return {name: found[name] for name in leaves}


def plain_loop(job: Job, batch_size: int, steps: int) -> Trained:
    """Run a plain training loop with the user's module, loss and optimizer.

    Each step uses one whole batch.
    """
    model = copy.deepcopy(job.model)
    optimizer = scheduled(job, {n: p for n, p in model.named_parameters() if p.requires_grad})
    trained = Trained()
    for step in range(steps):
        batch = job.batch_at(step * batch_size, batch_size)
        args, kwargs, loss_args, loss_kwargs = job.split(batch)
        output = model(*args, **kwargs)
        loss = loss_in(output) if job.loss is None else job.loss(output, *loss_args, **loss_kwargs)
        optimizer.optimizer.zero_grad()
        loss.backward()
        if job.clip_grad_norm is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), job.clip_grad_norm)
        optimizer.step(step)
        trained.losses.append((step, float(loss.detach()), batch_size))
    trained.weights = {name: p.detach() for name, p in model.named_parameters()}
    return trained
