"""Where torch may be imported: only where a model is run, taken apart or measured."""

import subprocess
import sys

from tests.package.helpers.sources import FILES, PACKAGE, TOP, imports_of_package, module_of, name_of

# Where torch may be imported at the top of a file: what executes a model, or takes one apart and measures it. Everything
# else must start and be tested without it.
TORCH = (
    "runtime/",
    "training/",
    "models/",
    "profiling/tensor_parallel/discovery/",
    *(
        f"profiling/{name}.py"
        for name in (
            "analytic/aten_costs",
            "analytic/block_calls",
            "analytic/fake_tensors",
            "analytic/sketch",
            "capture/capture",
            "capture/captured",
            "capture/compiled",
            "capture/record_forward",
            "capture/recorded_graph",
            "capture/recorder",
            "capture/replay",
            "capture/segmentation",
            "capture/stage",
            "capture/storage_tracker",
            "checks/batch_independence",
            "checks/elementwise_step",
            "checks/group_state",
            "checks/loss_additivity",
            "checks/mean_draws",
            "checks/one_loss",
            "checks/sparse_gradients",
            "checks/stable_calls",
            "checks/suggest_weight",
            "checks/verify",
            "job/clip",
            "job/learning_rate/learning_rates",
            "job/optimizer",
            "job/parameter_groups",
            "job/derived_model/placeholders",
            "job/derived_model/precision",
            "job/derived_model/training_step",
            "job/weight_average",
            "job/derived_model/subtasks",
            "measure/assemble",
            "measure/compile_speedup",
            "measure/measure",
            "measure/memory",
            "measure/request",
            "measure/timing",
            "measure/worker_costs",
            "tensor_parallel/dropout",
            "tensor_parallel/group",
            "tensor_parallel/module_rules",
            "tensor_parallel/sequence_parallel",
            "tensor_parallel/sharded_logits",
            "tensor_parallel/sharded_modules",
            "tensor_parallel/threaded_group",
            "tensor_parallel/vocab_parallel",
        )
    ),
)
# Where torch may be imported inside a function as well.
TORCH_LAZILY = (
    *TORCH,
    *(
        f"profiling/{name}.py"
        for name in (
            "data/batches",
            "data/checksums",
            "data/samples",
            "data/seeding",
            "job/job",
            "job/likeness",
            "measure/background_load",
        )
    ),
    "api.py",
    "cli/",
)


def test_every_exception_is_about_a_file() -> None:
    """The list of places for torch names only what exists."""
    assert [name for name in TORCH if not (PACKAGE / name).exists()] == []


def test_torch_is_imported_only_where_it_runs() -> None:
    """Planning, simulating and checking never load torch: only the rooms that execute do."""
    wrong = [
        str(one)
        for one in imports_of_package()
        if one.module.split(".")[0] in ("torch", "torchvision", "transformers")
        and not one.typing
        and not one.path.startswith(TORCH_LAZILY if one.lazy else TORCH)
    ]
    assert not wrong, "\n".join(wrong)


def test_importing_everything_else_leaves_torch_alone() -> None:
    """In a fresh process, all modules outside the rooms that execute load without torch coming along."""
    modules = [
        module_of(name_of(path))
        for path in FILES
        if not name_of(path).startswith(TORCH) and name_of(path) != "__init__.py" and path.name != "__main__.py"
    ]
    script = (
        "import importlib, sys\nfor name in sys.argv[1:]: importlib.import_module(name)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *modules], capture_output=True, text=True, cwd=TOP, check=False
    )
    assert (done.stdout.strip(), done.returncode) == ("False", 0), done.stderr
