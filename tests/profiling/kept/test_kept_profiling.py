"""What is found of drawn models, jobs and profiles, equal to what is kept beside this file.

After a change that is meant, write the files again with --update-golden, and read the difference.
"""

import inspect
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hocket.errors import HocketError
from hocket.profiling.analytic.operators import Product, flops_of
from hocket.profiling.analytic.repeat_blocks import lengthened, repeated_block
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.analytic.transformer import Transformer
from hocket.profiling.analytic.transformer_blocks import blocks_of
from hocket.profiling.capture.compiled_costs import Compiled
from hocket.profiling.job.job import Job
from hocket.profiling.job.learning_rate.named_schedules import SCHEDULES, NamedSchedule
from hocket.profiling.job.likeness import difference, likeness
from hocket.profiling.profile import ModelProfile
from tests import drawn
from tests.kept import check, tried


def transformer(draw: random.Random) -> Transformer:
    """Sizes of a transformer, with every option on or off."""
    heads = draw.choice((4, 8))
    flags = ("gated", "biases", "learned_positions", "dropout", "tied", "causal", "fused_attention", "fused_passes")
    flags += ("query_biases", "embedding_norm", "last_norm", "head_transform")
    options: dict[str, Any] = {name: draw.random() < 0.5 for name in flags}
    options |= {
        "kv_heads": draw.choice((0, 4)),
        "feed_forward": draw.choice((0, 96)),
        "token_types": draw.choice((0, 2)),
    }
    sequence = draw.choice((16, 32))
    options["positions"] = draw.choice((0, sequence, 64))
    return Transformer("t", draw.randint(1, 4), heads * 16, heads, 100 * draw.randint(1, 9), sequence, **options)


def of_blocks(draw: random.Random) -> list[str]:
    """Costs of the layers of a transformer on one rank, and its parameters."""
    lines = []
    for _ in range(2):
        model, tensor, samples = transformer(draw), draw.choice((1, 2, 4, 3)), draw.choice((1, 4))
        counts = (model.parameters, model.model_flops(samples), model.model_flops(samples, False))
        lines.append(f"  {[f'{count:.9g}' for count in counts]}, tensor {tensor}, {samples} samples")
        try:
            blocks = blocks_of(model, samples, tensor, sequence_parallel=draw.random() < 0.5)
        except HocketError as error:
            lines.append(f"    {error}")
            continue
        for block in (blocks[0], blocks[1], blocks[-1]):
            for name, own in (("forward", block.forward), ("backward", block.backward), ("again", block.again)):
                moved, products = sum(one.moved_bytes for one in own), [one for one in own if isinstance(one, Product)]
                lines.append(
                    f"    {block.kind} {name}: {len(own)} operators, {flops_of(own):.9g} flops, {moved:.9g} B, {products[:1]}"
                )
            lines.append(f"    {replace(block, forward=(), backward=(), again=())}")
    return lines


class Net(nn.Module):
    """A chain of drawn layers with skips, views, in-place operations, unused results and a shared weight."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.width = draw.choice((4, 8))
        self.kinds = [draw.choice(("linear", "block", "conv", "norm", "drop", "tied", "split")) for _ in range(6)]
        self.skips = {k: draw.randrange(k) for k in range(2, 6) if draw.random() < 0.5}
        self.parts = nn.ModuleList(self._part(kind) for kind in self.kinds)
        self.last = nn.Linear(self.width, 3)

    def _part(self, kind: str) -> nn.Module:
        width = self.width
        match kind:
            case "block":
                return nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            case "conv":
                return nn.Conv1d(4, 4, 3, padding=1)
            case "norm":
                return nn.LayerNorm(width)
            case "drop":
                return nn.Dropout(0.2)
            case "split":
                return nn.Linear(width, 2 * width)
        return nn.Linear(width, width, bias=kind == "linear")

    def forward(self, x: Tensor) -> Tensor:
        """Map (samples, 4, width) to (samples, 3)."""
        seen = [x]
        for k, (kind, part) in enumerate(zip(self.kinds, self.parts, strict=True)):
            x = part(x)
            if kind == "split":
                one, other = x.chunk(2, dim=-1)
                x = one * other.sigmoid()
            elif kind == "tied":
                x = nn.functional.linear(x.relu_(), part.weight.t())
            if k in self.skips:
                x = x + seen[self.skips[k]]
            seen.append(x)
        return self.last(x.mean(1))


def job(draw: random.Random, **options: Any) -> Job:
    """A job of a drawn net, with some frozen weights."""
    torch.manual_seed(draw.randrange(100))
    net = Net(draw)
    if draw.random() < 0.3:
        next(net.parts[0].parameters(), net.last.bias).requires_grad_(False)
    data = [(torch.randn(4, net.width), torch.tensor(k % 3)) for k in range(16)]
    kind = draw.choice((torch.optim.Adam, torch.optim.SGD, torch.optim.Adagrad))
    told: dict[str, Any] = {"batch_size": 8, "name": "drawn"}
    return Job(net, nn.CrossEntropyLoss(), data, lambda p: kind(p, lr=0.1), **(told | options))


def of_sketches(draw: random.Random) -> list[str]:
    """Layers, tensors and operators of a net that is cut into at most some layers."""
    found = sketch(job(draw), (1, 4), max_layers=draw.choice((2, 3, 5, 64)), foreach=draw.random() < 0.5)
    lines = [
        f"  {len(found.step)} operators of a step of {found.parameters} weights, {sum(one.moved_bytes for one in found.step):.9g} B"
    ]
    for layer, work in zip(found.profile.layers, found.work[-1], strict=True):
        told = [
            f"{len(own)}: {flops_of(own):.6g} {sum(one.moved_bytes for one in own):.6g}"
            for own in (work.forward, work.backward)
        ]
        sizes = (layer.stash_bytes, layer.working_bytes, layer.backward_bytes, layer.fresh_bytes, layer.flops)
        lines.append(f"  {layer.name} ({layer.kind}) {layer.parameters} {layer.notes} {told}")
        lines.append(
            f"    {sizes} {layer.weights_bytes} {layer.gradients_bytes} {layer.optimizer_bytes} {layer.step_bytes}"
        )
    return lines + [f"  {tensor}" for tensor in found.profile.tensors] + [f"  ties {found.profile.ties}"]


def of_schedules(draw: random.Random) -> list[str]:
    """Factors of learning rates at the edges of each phase, or why a schedule is refused."""
    lines = []
    for name in (*SCHEDULES, "greedy", "cosin"):
        steps, warm = draw.choice((1, 10, 20)), draw.choice((0, 1, 4, 20))
        chosen: dict[str, Any] = {
            "steps": steps, "warmup_steps": warm, "decay_steps": draw.choice((1, 5)), "num_cycles": draw.choice((0.5, 2.0, 3)),
            "power": 2.0, "lr_end": draw.choice((1e-3, 0.5)), "min_lr": 0.01, "min_lr_rate": 0.1, "warmup_lr_rate": 0.25, "timescale": 9,
            "stable_steps": 3, "warmup_type": draw.choice(("linear", "cosine", "1-sqrt")), "decay_type": draw.choice(("linear", "1-sqrt")),
            "min_lr_ratio": draw.choice((0.0, 0.1)), "other": 1,
        }  # fmt: skip
        odd = draw.choice((None, None, None, None, None, -1, True, 1.5, "x"))
        for _ in range(4):
            takes = inspect.signature(SCHEDULES[name]).parameters if name in SCHEDULES else ()
            given = {key: value for key, value in chosen.items() if draw.random() < (0.7 if key in takes else 0.02)}
            if odd is not None and given:
                given[draw.choice(list(given))] = odd
            told = tried(NamedSchedule.read, {"name": name, **given})
            lines.append(f"  {name} {given}: {told if told.startswith('refused') else ''}")
            if not told.startswith("refused"):
                at = sorted(
                    {0, 1, warm - 1, warm, warm + 1, warm + 3, steps - 5, steps - 1, steps, steps + 1, 50}
                    - {-1, -5, -4}
                )
                found = NamedSchedule.read({"name": name, **given})
                lines.append(f"    {[(step, tried(found.factor, step, 0.3)) for step in at if step >= 0]}")
    return lines


def of_profiles(draw: random.Random) -> list[str]:
    """Figures of a profile at sizes that were and were not measured, on other devices, compiled and lengthened."""
    profile = drawn.model(draw, 6)
    count = len(profile.layers)
    profile = replace(
        profile, load_s=(0.1, 0.15, 0.3), whole_forward_std_s=(0.1, 0.3, 0.2), whole_backward_std_s=(0.2, 0.2, 0.4)
    )
    rows = tuple(tuple(draw.uniform(0.5, 1.5) for _ in profile.microbatch_sizes) for _ in range(2))
    compiled = replace(
        profile, compiled=Compiled("inductor", 5.0, (draw.randint(1, count - 1), count), rows, rows[::-1])
    )
    lines = [f"  {compiled.compiled.line(1) if compiled.compiled else ''}"]
    for one in (
        profile,
        profile.on(drawn.SLOWER_TYPE),
        profile.knowing([profile.on(drawn.SLOWER_TYPE)]),
        compiled.compiling([0, count - 1]),
    ):
        for size in (1, 1.5, 3, 4, 7.5):
            found = one.figures(size)
            sums = [
                float(np.sum(getattr(found, name)))
                for name in ("forward_s", "backward_s", "stash_bytes", "backward_bytes", "tensor_bytes")
            ]
            lines.append(f"  {size}: {[f'{each:.9g}' for each in sums]} {found.load_s:.9g} {found.deviation_s}")
    lines.append(f"  {profile.unique_weights_bytes:.9g} {profile.weights_bytes([0, count - 1]):.9g} {profile.ties}")
    told = ModelProfile.from_json(profile.to_json())
    assert told == profile
    return lines


def of_lengths(draw: random.Random) -> list[str]:
    """A profile of equal blocks, with more of these blocks."""
    torch.manual_seed(0)
    width, blocks = draw.choice((4, 8)), draw.choice((3, 4))

    def block() -> nn.Module:
        return nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))

    net = nn.Sequential(nn.Linear(width, width), *(block() for _ in range(blocks)), nn.Linear(width, 3))
    data = [(torch.randn(width), torch.tensor(k % 3)) for k in range(8)]
    made = Job(net, nn.CrossEntropyLoss(), data, lambda p: torch.optim.Adam(p), 8, "blocks")
    profile = sketch(made, (1, 2), max_layers=draw.choice((4, 6, 64))).profile
    found = repeated_block(profile)
    lines = [f"  {len(profile.layers)} layers: {found}"]
    for times in (blocks - 1, blocks, blocks + 2) if found is not None else ():
        try:
            longer = lengthened(profile, found, times)
        except (HocketError, ValueError) as error:
            lines.append(f"  {times}: {error}")
            continue
        lines.append(
            f"  {times}: {[layer.name for layer in longer.layers]} {longer.unique_weights_bytes} {longer.name} {longer.notes}"
        )
        lines += [f"    {tensor}" for tensor in longer.tensors]
    return lines


def of_likeness(draw: random.Random) -> list[str]:
    """What makes a job another one."""
    seed = draw.randrange(1000)
    known = likeness(job(random.Random(seed)))
    lines = [f"  {known['settings']} {known['optimizer']}"]
    others: list[Callable[[], Job]] = [
        lambda: job(random.Random(seed)),
        lambda: job(random.Random(seed), batch_size=4),
        lambda: job(random.Random(seed), seed=1),
        lambda: job(random.Random(seed), clip_grad_norm=1.0),
        lambda: job(random.Random(seed), lr_schedule="constant"),
        lambda: job(random.Random(seed), lr_schedule=lambda step: 1 / (1 + step)),
        lambda: job(random.Random(seed), loss_weight="sum"),
        lambda: job(random.Random(seed + 1)),
    ]
    for k, other in enumerate(others):
        found = likeness(other())
        lines.append(f"  {k}: {difference(known, found)} | {difference(found, known)}")
    for change in (
        lambda net: net.eval(),
        lambda net: net.last.bias.data.add_(0.01),
        lambda net: net.last.requires_grad_(False),
    ):
        made = job(random.Random(seed))
        change(made.model)
        lines.append(f"  changed: {difference(known, likeness(made))}")
    return lines


PARTS = {
    "blocks": (of_blocks, 14), "sketches": (of_sketches, 3), "schedules": (of_schedules, 3), "profiles": (of_profiles, 6),
    "lengths": (of_lengths, 2), "likeness": (of_likeness, 3),
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
@pytest.mark.thinned(most=3)
def test_figures(name: str, update_golden: bool) -> None:
    """What one part of the room finds of each draw."""
    torch.set_num_threads(1)
    part, tasks = PARTS[name]
    lines = []
    for seed in range(tasks):
        lines += [f"{seed}:", *part(random.Random(f"{seed} {name}"))]
    check(Path(__file__).with_name(f"{name}.txt"), "\n".join(lines) + "\n", update_golden)
