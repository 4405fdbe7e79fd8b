"""Strategies: one file each. A member says what it supports, which choices it offers, and compiles one to a Program.

Every member is a module with

    PAPER: str                                      where the idea comes from
    STEADY: bool                                    whether, once the pipeline is filled, each further round of a batch takes
                                                    as long and as much memory as the one before
    OPTIONS: dict[str, Option]                      what a plan's `options` may say
    rule(stages, microbatches, options) -> Rule     the update rule that it declares
    supports(stages, microbatches, options)         -> None, or the reason why not
    in_flight(stages, microbatches, options)        -> by stage, microbatches between forward and backward on a replica
    compile(stages, microbatches, options)          -> Program
    choices(situation)                              -> candidates for the planner

Members know no engine, no seconds and no bytes but those of the situation they choose for.
"""
