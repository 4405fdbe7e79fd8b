"""LIBRA's simulated study of buckets and communication threads, compared with other systems' rules.

    python bench/bench_libra.py                # search times, figures 6 to 8 of the paper on 8 nodes, then figure 9
    python bench/bench_libra.py --threads 512  # threads of every all-reduce, as the communication library chooses

The models are those of Table I, on 8 to 2,048 nodes of V100s with 50 Gbit/s. Their times are predicted for a V100
(docs/how-to/profile-without-the-device.md). BERT needs transformers.

The contention model uses the paper's figures where they exist: 38 % more compute time during 2,048 communication
threads (figure 1(a)), and 50 Gbit/s. With 2,048 threads instead of 128, ResNet-152 with 8 samples gains 14 %
(figure 1(b)); this determines the loss with 128 threads. The start-up time is that of 8 nodes with 56 Gbit/s InfiniBand
in MG-WFBP's tables.
"""

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass

from hocket import models
from hocket.cost.analytic.from_operators import costed
from hocket.hardware import catalog
from hocket.hardware.overlap import OverlapModel, OverlapStage, Rate
from hocket.planning.buckets.baselines import by_window, merged, no_overlap
from hocket.planning.buckets.tensor_fusion import Fusion, ReadyGradients, allocate, joint
from hocket.profiling.analytic.sketch import sketch
from hocket.profiling.job.job import Job

V100 = catalog.device_type("v100-16gb")
LINE_BYTES_PER_S = 50e9 / 8 * 0.9
STARTUP_S = 9.75367204301171e-05  # start-up of an all-reduce on 8 nodes: MG-WFBP's alpha for 56 Gbit/s InfiniBand
NODES = (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
WAYS = ("SE", "H-N", "MG-N", "LIBRA-M", "LIBRA", "MG-CF")


@dataclass(frozen=True)
class Case:
    """A model with its samples per device.

    Attributes:
        forward_s: seconds of the forward pass.
        gradients: gradients that the backward pass computes.
    """

    name: str
    forward_s: float
    gradients: ReadyGradients


def contention(lost: float) -> OverlapModel:
    """Contention model of 8 nodes.

    Arguments:
        lost: fraction of the bandwidth that is lost with zero threads.
    """
    rate = Rate(LINE_BYTES_PER_S, lost * LINE_BYTES_PER_S, 0.03)
    return OverlapModel(1.0, (1 - 1 / 1.38) / 2048, rate, rate, STARTUP_S / 14, 8)


def gain(model: OverlapModel, gradients: ReadyGradients) -> float:
    """Relative reduction of the backward time with 2,048 threads instead of 128, for the same buckets."""
    ends = merged(gradients, model, 1024).ends
    many, few = (Fusion(ends, (r,) * len(ends)).backward_s(gradients, model) for r in (2048, 128))
    return 1 - many / few


def calibrated_contention(gradients: ReadyGradients, wanted_gain: float) -> OverlapModel:
    """Contention model under which these gradients have the gain `wanted_gain`."""
    low, high = 0.0, 1.0
    for _ in range(50):
        lost = (low + high) / 2
        low, high = (lost, high) if gain(contention(lost), gradients) < wanted_gain else (low, lost)
    return contention(low)


def case(name: str, job: Job) -> Case:
    """Predict the times of a job on a V100."""
    size = job.batch_size
    profile = costed(sketch(job, [size], max_layers=160), V100)
    backward_s = [float(seconds) for seconds in profile.column("backward_s", size)]
    sizes = [layer.gradients_bytes for layer in profile.layers]
    gradients = ReadyGradients(tuple(reversed(sizes)), tuple(reversed(backward_s)))
    return Case(name, float(profile.column("forward_s", size).sum()), gradients)


def bert(samples: int) -> Job | None:
    """BERT-Base with a masked-language head, sequences of 128 tokens; None without transformers."""
    try:
        import torch
        from transformers import BertConfig, BertForMaskedLM
    except ImportError:
        return None
    with torch.device("meta"):
        model = BertForMaskedLM(BertConfig())
    words = torch.zeros((samples, 128), dtype=torch.long)

    def loss(output: object, labels: torch.Tensor) -> torch.Tensor:
        logits = output.logits  # type: ignore[attr-defined]
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())

    data = torch.utils.data.TensorDataset(words, words)
    return Job(model, loss, data, lambda own: torch.optim.AdamW(own), samples, name="bert")


def cases() -> Iterator[Case]:
    """Yield the models of Table I; ResNet-152 has 60 million parameters."""
    for name, samples, options in (
        ("xception", 32, {}),
        ("resnet", 32, {"depth": 152}),
        ("vgg", 128, {}),
    ):
        yield case(name, models.job(name, batch_size=samples, samples=samples, classes=1000, **options))  # type: ignore[arg-type]
    made = bert(32)
    if made is not None:
        yield case("bert", made)


def ways(one: Case, model: OverlapModel, threads: int) -> dict[str, tuple[Fusion, OverlapModel]]:
    """Buckets of each rule, and the contention model that times them."""
    fused = merged(one.gradients, model, threads)
    return {
        "SE": (no_overlap(one.gradients, threads), model),
        "H-N": (by_window(one.gradients, model, threads), model),
        "MG-N": (fused, model),
        "LIBRA-M": (allocate(one.gradients, model, fused.ends), model),
        "LIBRA": (joint(one.gradients, model), model),
        "MG-CF": (fused, model.without_contention()),
    }


def parts(stages: tuple[OverlapStage, ...]) -> tuple[float, float]:
    """Compute seconds, and seconds of communication after compute has ended (figure 7)."""
    return sum(stage.both_s + stage.computing_s for stage in stages), sum(stage.communicating_s for stage in stages)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--threads",
        type=int,
        default=1024,
        help="threads of all-reduces of rules that do not choose any (default 1,024)",
    )
    arguments = parser.parse_args()
    small = case("resnet", models.job("resnet", depth=152, classes=1000, batch_size=8, samples=8))
    model = calibrated_contention(small.gradients, 0.14)
    print(f"contention: {model}")
    found = list(cases())
    print("\nsearch, processor seconds")
    for one in found:
        begun = time.process_time()
        joint(one.gradients, model)
        print(f"  {one.name:10}{len(one.gradients.sizes_bytes):4} layers {time.process_time() - begun:8.2f}")
    print("\n8 nodes: samples a second against SE; backward, ms: computation + what is left of communication")
    for one in found:
        timed = {
            name: (fusion.stages(one.gradients, m), fusion)
            for name, (fusion, m) in ways(one, model, arguments.threads).items()
        }
        whole = {name: one.forward_s + sum(stage.seconds for stage in stages) for name, (stages, _) in timed.items()}
        for name in WAYS:
            computing_s, left_s = parts(timed[name][0])
            fusion = timed[name][1]
            print(
                f"  {one.name:10}{name:8}{whole['SE'] / whole[name]:7.3f}{computing_s * 1e3:9.1f} +{left_s * 1e3:7.1f}"
                f"   {len(fusion.ends)} buckets, threads {sorted(set(fusion.threads))}"
            )
    print("\nsamples a second a node against one node alone")
    print(f"  {'':10}{'nodes':>6}" + "".join(f"{name:>9}" for name in WAYS) + "  LIBRA against H-N, MG-N, SE")
    for one in found:
        alone_s = one.forward_s + sum(one.gradients.computes_s)
        for nodes in NODES:
            many = ways(one, model.on(nodes), arguments.threads)
            took = {name: one.forward_s + fusion.backward_s(one.gradients, m) for name, (fusion, m) in many.items()}
            ahead = "".join(f"{took[name] / took['LIBRA'] - 1:9.1%}" for name in ("H-N", "MG-N", "SE"))
            print(f"  {one.name:10}{nodes:6}" + "".join(f"{alone_s / took[name]:9.3f}" for name in WAYS) + ahead)


if __name__ == "__main__":
    main()
