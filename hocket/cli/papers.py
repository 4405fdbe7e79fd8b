"""`hocket papers`: ideas of the papers, with source, code, page and test."""

from dataclasses import dataclass

from hocket.cli.output.options import Json


@dataclass(frozen=True)
class Idea:
    """One idea of a paper, and its places in the repository.

    Attributes:
        name: the idea in words.
        paper: name of the system or publication, and the section.
        places: files and folders of the package, relative to `hocket/`.
        docs: documentation page, relative to `docs/`.
        test: test that demonstrates the idea, relative to `tests/`.
    """

    name: str
    paper: str
    places: tuple[str, ...]
    docs: str
    test: str


IDEAS = (
    Idea(
        "pipeline with weight stashing",
        "PipeDream; dissertation 2.4",
        ("strategies/schedules/pipedream.py",),
        "explanation/pipedream.md",
        "strategies/schedules/test_published_schedules.py",
    ),
    Idea(
        "partitioning of layers into stages",
        "PipeDream; dissertation 2.3",
        ("strategies/pipedream_partition",),
        "explanation/pipedream.md",
        "strategies/pipedream_partition/test_partition_brute_force.py",
    ),
    Idea(
        "two weight versions",
        "PipeDream-2BW; dissertation 3.2.1",
        ("strategies/schedules/two_bw.py",),
        "explanation/pipedream-2bw.md",
        "strategies/schedules/test_published_schedules.py",
    ),
    Idea(
        "1F1B with a flush",
        "PipeDream-Flush; dissertation 3.2.2",
        ("strategies/schedules/flush.py",),
        "explanation/pipedream-2bw.md",
        "strategies/schedules/test_published_schedules.py",
    ),
    Idea(
        "interleaved pipeline",
        "PTD-P; dissertation 4.2.2",
        ("strategies/schedules/interleaved.py",),
        "explanation/ptd-p.md",
        "strategies/schedules/test_published_schedules.py",
    ),
    Idea(
        "pipeline x tensor x data parallelism",
        "PTD-P; dissertation 4",
        ("planning/mesh", "profiling/tensor_parallel", "runtime/tensor_parallel"),
        "explanation/tensor-parallelism.md",
        "runtime/engine/test_tensor_groups.py",
    ),
    Idea(
        "heterogeneity-aware policies",
        "Gavel; dissertation 5",
        ("scheduler/policies", "scheduler/solver"),
        "explanation/gavel.md",
        "conformance/test_policies.py",
    ),
    Idea(
        "rounds and leases",
        "Gavel; dissertation 5.5",
        ("scheduler/rounds", "scheduler/core"),
        "explanation/gavel.md",
        "scheduler/rounds/test_priorities.py",
    ),
    Idea(
        "throughput estimates",
        "Gavel; dissertation 5.6",
        ("scheduler/estimator",),
        "explanation/estimator.md",
        "scheduler/estimator/test_estimator.py",
    ),
    Idea(
        "training on dynamically priced instances",
        "dissertation 6",
        ("scheduler/prices",),
        "explanation/prices.md",
        "scheduler/prices/test_bill.py",
    ),
    Idea(
        "burst-parallel plans",
        "DeepPool 4",
        ("strategies/schedules/burst_parallel.py", "strategies/burst", "planning/burst"),
        "explanation/deeppool.md",
        "strategies/burst/test_burst_chain.py",
    ),
    Idea(
        "a background job on the same devices",
        "DeepPool 5",
        ("cost/background", "simulation/background", "planning/background"),
        "explanation/deeppool.md",
        "simulation/background/test_ceiling.py",
    ),
    Idea(
        "communication threads and tensor fusion",
        "LIBRA",
        ("planning/buckets", "cost/buckets", "training/calibrate/buckets"),
        "explanation/libra.md",
        "planning/buckets/test_tensor_fusion.py",
    ),
    Idea(
        "tick-tock waves",
        "Wavelet 3.2",
        ("strategies/schedules/tick_tock.py",),
        "explanation/wavelet.md",
        "runtime/update/test_averaging.py",
    ),
    Idea(
        "waves of model parallelism",
        "Wavelet 3.3",
        ("strategies/schedules/waves.py", "planning/waves"),
        "explanation/wavelet.md",
        "planning/waves/test_room.py",
    ),
    Idea(
        "models larger than device memory",
        "Harmony 3",
        (
            "strategies/schedules/harmony.py",
            "strategies/swapping",
            "planning/swapping",
            "program/passes/swapping",
            "runtime/swapping",
            "cost/swapping",
            "simulation/swapping",
        ),
        "explanation/harmony.md",
        "runtime/swapping/test_harmony.py",
    ),
)


def papers(json: Json = False) -> None:
    """List the ideas of the papers, each with its code, its page and its test."""
    from hocket.cli.output.table import print_table
    from hocket.cli.output.tables import print_json
    from hocket.strategies.base.strategy import all_strategies

    sources = [(name, member.paper, f"hocket/strategies/schedules/{name}.py") for name, member in all_strategies()]
    if json:
        ideas = [
            {
                "idea": idea.name,
                "paper": idea.paper,
                "places": [f"hocket/{place}" for place in idea.places],
                "docs": f"docs/{idea.docs}",
                "test": f"tests/{idea.test}",
            }
            for idea in IDEAS
        ]
        print_json({"ideas": ideas, "strategies": [{"strategy": a, "paper": b, "home": c} for a, b, c in sources]})
        return
    print(
        "ideas of the papers: code, page, test (docs/ and tests/ are in the repository, not in the installed package)"
    )
    for idea in IDEAS:
        print(f"\n  {idea.name} ({idea.paper})")
        for place in (*(f"hocket/{place}" for place in idea.places), f"docs/{idea.docs}", f"tests/{idea.test}"):
            print(f"    {place}")
    print()
    print_table("strategies (in hocket/strategies/schedules/)", ["strategy", "source"], [[a, b] for a, b, _ in sources])
