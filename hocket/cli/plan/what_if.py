"""`hocket what-if`: a plan, or a model's best plan, with other hardware or batch."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli.output.options import Json, at_least_one
from hocket.printable import say

if TYPE_CHECKING:
    from hocket.planning.explain.what_if import Scenario

_ONE_EACH = "at most one change of each kind, because --combined applies all changes at once"
_ONE_BY_ONE = "Leave out --combined to predict each change by itself."


def what_if(
    model: Annotated[str, typer.Argument(help="A plan file, a profile or an analytic model, as for `hocket plan`.")],
    cluster: Annotated[Path | None, typer.Argument(help="A cluster file; a plan has its own.")] = None,
    planned: Annotated[
        int | None, typer.Option("--planned-batch", "-B", help="Current samples per update; a plan has its own.")
    ] = None,
    bandwidth: Annotated[
        list[str] | None, typer.Option(help="Bandwidth of a cluster level, such as server=2x; repeatable.")
    ] = None,
    latency: Annotated[
        list[str] | None, typer.Option(help="Latency of a cluster level, such as cluster=0.5x; repeatable.")
    ] = None,
    memory: Annotated[list[str] | None, typer.Option(help="Memory of each device, such as +10%; repeatable.")] = None,
    host_link: Annotated[
        list[str] | None, typer.Option(help="Bandwidth between devices and hosts, such as 2x; repeatable.")
    ] = None,
    rate: Annotated[
        list[str] | None, typer.Option(help="Speed of arithmetic and device memory, such as 2x; repeatable.")
    ] = None,
    batch: Annotated[list[str] | None, typer.Option(help="Samples per update, such as 2x or 3072; repeatable.")] = None,
    devices: Annotated[list[int] | None, typer.Option(help="Number of devices; repeatable.")] = None,
    device_type: Annotated[
        list[str] | None, typer.Option(help="Another device type, such as h100; repeatable.")
    ] = None,
    replan: Annotated[bool, typer.Option("--replan", help="For a plan: search again with its profile, too.")] = False,
    combined: Annotated[bool, typer.Option("--combined", help="Answer all changes at once, as one question.")] = False,
    feedback: Annotated[
        bool,
        typer.Option(
            "--feedback/--no-feedback",
            help="For a profile: correct it, and the links to hosts, with measurements of an earlier run "
            "(*.experience.yaml in the current folder).",
        ),
    ] = True,
    json: Json = False,
) -> None:
    """Predict the effect of other links, memory, batch sizes or devices.

    No file is changed.

    Example: hocket what-if gpt3-175b cluster.yaml -B 1536 --bandwidth server=2x --memory +10% --devices 256

    For a plan: hocket what-if plan.yaml --bandwidth server=2x --batch 2x

    Without options: twice each bandwidth (host links too, if the plan swaps), 10 % more memory, twice the batch, twice
    the device speed.
    """
    from hocket.cli.output.tables import print_json
    from hocket.cli.plan.explain import answer_json, answered, print_answers
    from hocket.cli.plan.scenarios import batch_scenarios, device_scenarios, factor_scenarios, link_scenarios
    from hocket.errors import InputError
    from hocket.planning.explain.what_if import usual

    if planned is not None:
        at_least_one("--planned-batch", planned)
    for count in devices or ():
        at_least_one("--devices", count)
    for word in batch or ():
        if word.removeprefix("-").isdecimal():
            at_least_one("--batch", int(word))
    others = [
        *link_scenarios("bandwidth", bandwidth),
        *link_scenarios("latency", latency),
        *factor_scenarios("memory", "memory", memory),
        *factor_scenarios("host link", "host_link", host_link),
        *factor_scenarios("rates", "rate", rate),
    ]
    kinds = device_scenarios(devices, device_type)
    batch_scenarios(batch, 1)  # refuses odd values before the search
    asked = _WhatIfOptions(model, cluster, planned, replan, feedback)
    answers = [*others, *batch_scenarios(batch, asked.batch_size), *kinds]
    if combined and not answers:
        step = "Name the changes, such as --bandwidth server=2x --memory +10%."
        raise InputError("--combined", "no changes", "the changes that are one question", step)
    for question in answers:
        question.change.of(asked.cluster)  # raises InputError for an impossible change
    questions = [_joined(answers)] if combined else answers or list(usual(asked.cluster, asked.swaps))
    found = [asked.answer(question) for question in questions]
    found = found if answers else answered(found)
    if json:
        print_json(
            {"now": asked.now, "samples_per_s": asked.samples_per_s, "answers": [answer_json(one) for one in found]}
        )
        return
    from hocket.util.units import show_number

    if asked.of_profile and any(question.change.rate != 1 for question in questions):
        print("  note: rates divide all times of a profile's layers, including kernel launches")
    if asked.within and any(one.question.change.memory > 1 and one.anew is None for one in found):
        say(f"  note: more memory is not used: the plan {asked.within}; --replan plans again")
    if asked.could_search and any(one.same is None for one in found):
        print("  note: this plan cannot be used unchanged in all of these cases; --replan plans again")
    say(f"now: {asked.now}, {show_number(asked.samples_per_s)} samples/s on {asked.cluster.name}")
    print_answers(found, "what if: samples per second, against now")


class _WhatIfOptions:
    """Subject of what-if scenarios: a plan file, or the best plan of a search.

    Attributes:
        answer: function from a scenario to its result.
        cluster, batch_size: current cluster, and current samples per update.
        now: description of the current plan.
        samples_per_s: predicted throughput of the current plan.
        of_profile: True if layers were profiled; then a scenario's rate scales their times.
        swaps: True if the current plan swaps values to host memory.
        could_search: True for a plan file without --replan, which is not planned again.
        within: description of the plan's swapping; empty without swapping.
    """

    def __init__(self, model: str, cluster: Path | None, batch: int | None, replan: bool, feedback: bool) -> None:
        from hocket.errors import InputError
        from hocket.hardware.cluster import Cluster
        from hocket.planning.load import open_plan
        from hocket.planning.mesh.plan_model import search_sizes
        from hocket.planning.search.request import PlanRequest
        from hocket.planning.search.search import search_widths
        from hocket.profiling.analytic.sizes import open_model
        from hocket.profiling.profile import ModelProfile

        self.answer: Any
        self.of_profile = self.swaps = False
        self.could_search = cluster is None and not replan
        self.within = ""
        self.cluster: Cluster
        if cluster is None:
            opened = open_plan(model)
            from hocket.planning.explain.what_if import ask_plan, ask_plan_of_sizes, sizes_of

            if batch is not None:
                raise InputError("--planned-batch", "a plan, which has its own batch size", "a model and a cluster")
            self.cluster, self.batch_size = opened.plan.cluster, opened.plan.batch_size
            self.swaps = opened.plan.swap is not None
            self.within = opened.plan.swap.describe() if opened.plan.swap is not None else ""
            self.now = f"{opened.plan.strategy} of {opened.plan.model}"
            self.samples_per_s = opened.predicted.samples_per_s
            if replan and opened.profile.source.startswith("worked out for"):
                model_of = sizes_of(opened)
                self.answer = lambda question: ask_plan_of_sizes(opened, model_of, question)
            else:
                self.answer = lambda question: ask_plan(opened, question, replan)
            self.of_profile = True
            return
        if batch is None:
            raise InputError("--planned-batch", "nothing", "the samples of a step, for a model with a cluster")
        from hocket.planning.explain.what_if import ask_profile, ask_sizes
        from hocket.planning.predict.feedback import experience_of

        self.cluster, self.batch_size = Cluster.read(cluster), batch
        request = PlanRequest(batch)
        loaded = open_model(model)
        if isinstance(loaded, ModelProfile):
            past = experience_of(Path(), None, loaded, self.cluster) if feedback else None
            if past is not None:
                say(f"note: {past.line}; --no-feedback disables this", file=sys.stderr)
                loaded, self.cluster = past.applied(loaded), past.on(self.cluster)
            self.of_profile = True
            search = search_widths({model: loaded}, self.cluster, request)
            self.now, self.samples_per_s = search.best.label, search.best.samples_per_s
            self.swaps = search.best.plan.swap is not None
            self.answer = lambda question: ask_profile(search, question)
            return
        sized = search_sizes(loaded, self.cluster, request)
        self.now, self.samples_per_s = sized.best.label, sized.best.predicted.samples_per_s
        self.answer = lambda question: ask_sizes(sized, question)


def _joined(questions: "Sequence[Scenario]") -> "Scenario":
    """Combine all scenarios into one.

    Raises:
        InputError: two scenarios change the same thing, such as the batch or one level's bandwidth.
    """
    from dataclasses import fields

    from hocket.errors import InputError
    from hocket.hardware.change import Change
    from hocket.planning.explain.what_if import Scenario

    whole: dict[str, Any] = {}
    batch = 1.0
    for question in questions:
        if question.batch != 1:
            if batch != 1:
                raise InputError("--combined", "two changes of the batch size", _ONE_EACH, _ONE_BY_ONE)
            batch = question.batch
        for one in fields(Change):
            value = getattr(question.change, one.name)
            if value == getattr(Change(), one.name):
                continue
            if isinstance(value, dict):
                before = whole.get(one.name, {})
                if twice := sorted(before.keys() & value.keys()):
                    found = f"two changes of the {one.name} of level {twice[0]}"
                    raise InputError("--combined", found, _ONE_EACH, _ONE_BY_ONE)
                whole[one.name] = {**before, **value}
            elif one.name in whole:
                raise InputError("--combined", f"two changes of {one.name}", _ONE_EACH, _ONE_BY_ONE)
            else:
                whole[one.name] = value
    return Scenario(", ".join(question.text for question in questions), Change(**whole), batch)
