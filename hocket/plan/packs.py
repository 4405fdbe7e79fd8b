"""Plans that swap, for models that the devices have no room for: Harmony's packs, each proved and simulated like any other plan.

Rules of this file: packs and sizes of microbatches are the tuner's (strategies/_harmony_equal.py); whether they fit, on devices and on
hosts, is proved of the program, and how long they take is simulated (swap_candidates.py). Where the cluster file does not say how much
memory hosts have, nothing is swapped.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from hocket.errors import InputError, RefusedError
from hocket.passes.swapping import Swapping
from hocket.plan.candidates import NO_HOST, TIE, Candidate, Refused
from hocket.plan.failing import failed
from hocket.plan.hunt import make_plan
from hocket.plan.plan import Plan
from hocket.plan.swap_candidates import Packs, has_hosts, tried
from hocket.plan.swapped import completed
from hocket.strategies._choices import Choice, Situation, cut
from hocket.strategies._harmony import HarmonyPlan, Mode
from hocket.strategies._harmony_costs import LayerProfile, Server
from hocket.strategies._harmony_equal import equal_plans
from hocket.strategies._harmony_measured import layer_profile, server_of
from hocket.units import show_bytes

SWAPPING = "harmony"
"""The strategy whose plans these are."""
POLICY = "next_use"
EACH = 2  # of each mode and room that are simulated, and the finest; where something fits without swaps, one
FINE = 1.1  # what the finest may take of the quickest by the tuner's clock, which does not fetch ahead: many small packs gain most by it
ROOMS = (1.0, 1.5)  # of a device's memory: what the tuner adds up is more than what a program holds
AHEAD = (2, 1)  # operations ahead of which values are swapped in, of the best
FINEST = 48  # packs of which it is asked what they need at least
MOST_FORWARDS = 2048  # in one iteration


def plans_of_packs(
    situation: Situation,
    profile_path: str = "",
    progress: Callable[[int, int, str], None] | None = None,
    others: bool = False,
) -> Packs:
    """Plans that swap, in the tuner's order; and the best with values swapped in ahead of their use.

    Arguments:
        others: something fits without swaps: only the best of each kind is looked at.
    """
    found = Packs()
    if not has_hosts(situation):
        if not others:
            found.refused.append(Refused(SWAPPING, "", NO_HOST, swaps=True))
        return found
    at = progress or (lambda done, total, what: None)
    at(0, 0, "packs of layers that swap")
    try:
        server, layers = server_of(situation.cluster), layer_profile(situation.profile, situation.cluster)
    except (InputError, RefusedError) as error:
        found.refused.append(Refused(SWAPPING, "", f"{error.found}; expected {error.expected}", swaps=True))
        return found
    try:
        offered = list(_offered(situation, layers, server, 1 if others else EACH, found))
    except Exception as error:
        found.refused.append(failed(SWAPPING, "", error, swaps=True))
        return found
    plain, total = list[Candidate](), len(offered) + (0 if others else len(AHEAD))
    for k, (mode, one) in enumerate(offered):
        at(k, total, f"swapping, {mode} {len(one.backward.packs)} packs b{one.backward.size}")
        try:
            plan = _plan(situation, mode, one, profile_path)
        except Exception as error:
            found.refused.append(failed(SWAPPING, f"{mode} {len(one.backward.packs)} packs", error, swaps=True))
            continue
        plain += tried(situation, plan, _config(plan), found, POLICY)
    if plain and not others:
        best = min(plain, key=lambda c: c.iteration_s)
        for k, ahead in enumerate(AHEAD, len(offered)):
            at(k, total, f"swapping {ahead} ahead, {best.config}")
            _ahead(situation, best, ahead, found)
    if not offered and not found.refused:
        found.refused.append(Refused(SWAPPING, "", _nothing(situation, layers, server), swaps=True))
    return found


def _ahead(situation: Situation, best: Candidate, ahead: int, found: Packs) -> None:
    """The quickest with values swapped in ahead of their use, where that is quicker."""
    known = Packs()
    better = tried(situation, best.plan, f"{_config(best.plan)} ahead {ahead}", known, POLICY, ahead)
    found.considered += known.considered
    found.refused += known.refused
    found.candidates += [one for one in better if one.iteration_s < best.iteration_s * (1 - TIE)]


def _offered(
    situation: Situation, layers: LayerProfile, server: Server, most: int, found: Packs
) -> Iterator[tuple[Mode, HarmonyPlan]]:
    seen = set()
    for mode in Mode:
        if mode is Mode.PIPELINE and server.devices == 1:
            continue
        for room in ROOMS:
            roomy = replace(server, memory_bytes=room * server.memory_bytes)
            try:
                plans = equal_plans(layers, roomy, situation.batch_size, mode, situation.sizes)
            except InputError as error:
                found.refused.append(
                    Refused(SWAPPING, str(mode), f"{error.place} {error.found}; expected {error.expected}", swaps=True)
                )
                break
            tried = _few(plans, most)
            if mode is Mode.DATA:  # and the quickest whose forward packs are larger
                plans = equal_plans(layers, roomy, situation.batch_size, mode, situation.sizes, nested=True)
                tried += _few([p for p in plans if _forward(p)], 1)[:1]
            for one in tried:
                if (mode, one.forward, one.backward) not in seen:
                    seen.add((mode, one.forward, one.backward))
                    yield mode, one


def _forward(one: HarmonyPlan) -> tuple[int, ...]:
    """Backward packs of each forward pack, the last by itself; () where forward packs are the same."""
    if len(one.forward.packs) + 1 == len(one.backward.packs):
        return ()
    ends = [pack.first for pack in one.backward.packs]
    return (*(ends.index(pack.end) - ends.index(pack.first) for pack in one.forward.packs), 1)


def _forwards(one: HarmonyPlan) -> int:
    """Of one iteration."""
    return one.batch // one.backward.size * len(one.backward.packs)


def _few(plans: Sequence[HarmonyPlan], most: int) -> list[HarmonyPlan]:
    """The quickest of as many numbers of packs, and the finest of those that are nearly as quick."""
    short = [one for one in plans if _forwards(one) <= MOST_FORWARDS]
    first: dict[int, HarmonyPlan] = {}
    for one in short:
        first.setdefault(len(one.backward.packs), one)
    kept = list(first.values())[:most]
    near = [one for one in first.values() if one.iteration_s <= FINE * short[0].iteration_s]
    finest = max(near, key=lambda one: len(one.backward.packs), default=None)
    return kept if finest is None or finest in kept else [*kept, finest]


def _plan(situation: Situation, mode: Mode, one: HarmonyPlan, profile_path: str) -> Plan:
    """A plan of packs whose stashes are made again, without its swaps."""
    everywhere = tuple(range(one.devices))
    stages = tuple(
        cut(situation, range(*pack), everywhere if mode is Mode.DATA else (t % one.devices,), recompute=True)
        for t, pack in enumerate(one.backward.packs)
    )
    options: dict[str, Any] = {"mode": str(mode)}
    if situation.profile.clip_grad_norm is not None:
        options["just_in_time"] = False
    if _forward(one):
        options["forward"] = list(_forward(one))
    size = one.backward.size
    return make_plan(situation, SWAPPING, Choice(stages, size, situation.batch_size // size, options), profile_path)


def _config(plan: Plan) -> str:
    """In a few words."""
    larger, count = plan.options.get("forward"), len(plan.stages)
    words = f"{count} packs" if larger is None else f"{len(larger)} packs forward {count} backward"
    return f"{plan.options['mode']} {words}"


def smallest_packs(situation: Situation) -> Plan:
    """A plan of packs as fine as a program may be long, in pipeline mode where that is possible, as hosts then have everything once.

    Raises:
        RefusedError: not even these fit into the devices.
    """
    server, layers = server_of(situation.cluster), layer_profile(situation.profile, situation.cluster)
    roomy, refused = replace(server, memory_bytes=ROOMS[-1] * server.memory_bytes), _nothing(situation, layers, server)
    room = min(situation.cluster.capacity_bytes(device) for device in range(server.devices))
    for mode in reversed(Mode) if server.devices > 1 else (Mode.DATA,):
        try:
            plans = equal_plans(layers, roomy, situation.batch_size, mode, situation.sizes)
        except InputError:
            continue
        short = [one for one in plans if len(one.backward.packs) <= FINEST and _forwards(one) <= MOST_FORWARDS]
        for one in sorted(short, key=lambda one: (one.backward.size, -len(one.backward.packs)))[:1]:
            swap = Swapping(POLICY, device_bytes=room)
            plan = completed(replace(_plan(situation, mode, one, ""), swap=swap), situation.profile)
            try:
                plan.compile(situation.profile)
            except RefusedError as error:
                refused = error.found
                continue
            return plan
    raise RefusedError("swap", refused)


def _nothing(situation: Situation, layers: LayerProfile, server: Server) -> str:
    """Why the tuner offers nothing: what the largest layer takes by itself."""
    held = layers.backward.bytes[0]
    k = int(held.argmax())
    name, room = situation.profile.layers[k].name, ROOMS[-1] * server.memory_bytes
    if held[k] <= room:
        return f"no size of microbatches divides a batch of {situation.batch_size}"
    hint = "a linear layer can be cut with subtask_bytes in its job (docs/training.md)"
    return f"layer {name} alone needs {show_bytes(float(held[k]))} of {show_bytes(server.memory_bytes)}; {hint}"
