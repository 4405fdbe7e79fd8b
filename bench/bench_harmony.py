"""Harmony's tuner compared with its public scheduler: predicted time of both plans, and search times.

    python -m bench.bench_harmony

The data is shared/data/harmony: profiles of one 1080Ti, and answers of the public scheduler for four devices of 10 GiB.
Column `public` is the public plan under our cost model, which follows the public simulator's rule. Column `printed` is
the public scheduler's own figure. For BERT with 600 samples and for ResNet it used a finer profile than the published
one, so the two columns differ there.
"""

import ast
import json
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np

from bench import harmony_profiles
from hocket.strategies.swapping.costs import GIB, LayerProfile, Server
from hocket.strategies.swapping.search import PackTables, plan_harmony
from hocket.strategies.swapping.tuner import Costs, HarmonyPlan, Mode

GOALS_S = {"bert_large_seqlen512": 1.0, "gpt2_xl": 1.0, "resnet1026": 10.0}
ROOMS_GIB = (4, 6, 8, 10, 12, 16, 24)


def rows() -> list[tuple[str, int, Mode, dict[str, str]]]:
    """Model, batch size, mode and public answer."""
    found = []
    for row in json.loads((harmony_profiles.DATA / "reference.json").read_text()):
        name, rest = row["name"].split("_D")
        batch, mode = rest.split("_")[:2]
        model = next(model for model in harmony_profiles.MODELS if model.startswith(name))
        found.append((model, int(batch), Mode.DATA if mode == "vDP" else Mode.PIPELINE, row))
    return found


def public_plan(costs: Costs, row: dict[str, str]) -> HarmonyPlan:
    """Public answer as a plan of ours."""
    cuts = [np.array([0, *(p[-1] + 1 for p in ast.literal_eval(row[key]))]) for key in ("pack_fwd", "pack_bwd")]
    return costs.plan(int(row["u_fwd"]), cuts[0], int(row["u_bwd"]), cuts[1])


def timed(profile: LayerProfile, server: Server, batch: int, mode: Mode) -> tuple[float, HarmonyPlan]:
    """CPU time of a search, and its plan."""
    start = time.process_time()
    plan = plan_harmony(profile, server, batch, mode)
    return time.process_time() - start, plan


def shape(plan: HarmonyPlan) -> str:
    """Size and number of packs, forward and backward, such as "2x4 1x4"."""
    return f"{plan.forward.size}x{len(plan.forward.packs)} {plan.backward.size}x{len(plan.backward.packs)}"


def bound_s(costs: Costs) -> float:
    """Lower bound of a pipeline's iteration time, in seconds.

    It divides compute and weight transfers of all tasks evenly over devices that never wait.
    """
    devices, freeing, best = costs.server.devices, costs.server.freeing_s, float("inf")
    for back in (u for u in costs.sizes if u <= costs.profile.backward.sizes[-1]):
        behind = PackTables(costs, back, True)
        for ahead in (u for u in costs.sizes if back <= u <= costs.profile.forward.sizes[-1]):
            whole = PackTables(costs, ahead, False).seconds[:-1] + behind.seconds[-1] + 2 * freeing
            whole[0] -= freeing  # there is no forward task
            last_fits = behind.bytes[-1] - behind.bytes[:-1] <= costs.server.memory_bytes
            best = min(best, float(whole[last_fits].min()) / devices)
    return best


def main() -> None:
    """Print both tables and the bounds."""
    small = harmony_profiles.read("bert_large_seqlen512")
    for mode in Mode:
        plan_harmony(small, Server(), 32, mode)  # warm-up: compile, or load the compiled code
    print("| model | batch | mode | printed | public | ours | GiB | packs | its search | ours | goal |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    worse, late, bounds = 0, 0, []
    for model, batch, mode, row in rows():
        profile = harmony_profiles.read(model)
        public = public_plan(Costs(profile, Server(), batch, mode), row)
        seconds, plan = timed(profile, Server(), batch, mode)
        worse += plan.iteration_s > public.iteration_s * (1 + 1e-12)
        late += seconds > GOALS_S[model]
        if mode is Mode.PIPELINE:
            bounds.append((model, batch, plan.iteration_s / bound_s(Costs(profile, Server(), batch, mode))))
        print(
            f"| {model} | {batch} | {mode} | {row['sim_s']} | {public.iteration_s:.3f} | {plan.iteration_s:.3f} | "
            f"{plan.peak_bytes / GIB:.2f} | {shape(plan)} | {float(row['search']):.2f} s | {seconds:.2f} s | {GOALS_S[model]:.0f} s |"
        )
    print(f"\nslower than the public plan: {worse}; searches above the goal: {late}\n")
    print("Pipelines over a bound that knows no waiting: " + ", ".join(f"{m} {b} {x:.2f}" for m, b, x in bounds) + "\n")
    print("Seconds of an iteration by memory of a device:\n")
    print("| model | batch | mode | " + " | ".join(f"{room} GiB" for room in ROOMS_GIB) + " |")
    print("|---" * (len(ROOMS_GIB) + 3) + "|")
    for model, batch in (("bert_large_seqlen512", 32), ("gpt2_xl", 64), ("resnet1026", 64)):
        for mode in Mode:
            found = [
                timed(harmony_profiles.read(model), replace(Server(), memory_bytes=room * GIB), batch, mode)[
                    1
                ].iteration_s
                for room in ROOMS_GIB
            ]
            assert all(b <= a * (1 + 1e-8) for a, b in pairwise(found))
            print(f"| {model} | {batch} | {mode} | " + " | ".join(f"{seconds:.3f}" for seconds in found) + " |")


if __name__ == "__main__":
    main()
