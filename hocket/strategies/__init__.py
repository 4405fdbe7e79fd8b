"""Strategies: pipeline schedules with their candidates, one module for each.

Every module in `schedules` has a `STRATEGY` (base/strategy.py, `Strategy`) with

    paper                                       where the idea comes from
    steady                                      True if, once the pipeline is filled, each further round of a batch
    costs
                                                as much time and memory as the round before
    options                                     entries of a plan's `options`, by name
    rule(stages, microbatches, options)         -> the update rule that the program implements
    supports(stages, microbatches, options)     -> None, or the reason for a refusal
    in_flight(stages, microbatches, options)    -> microbatches between forward and backward on a replica, by stage
    compile(stages, microbatches, options)      -> Program
    choices(space)                              -> candidates for the planner

A strategy knows no runtime engine. It knows seconds and bytes only from the search space for which it proposes
candidates.
"""
