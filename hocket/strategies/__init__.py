"""Strategies: pipeline schedules with their candidates, one module for each.

Every module in `schedules` has a `STRATEGY` (base/strategy.py, `Strategy`) with

    paper                                       where the idea comes from
    steady                                      True if, once the pipeline is filled, each further microbatch of every
                                                replica adds the same time and no memory
    options                                     the options that a plan may set, by name
    rule(stages, microbatches, options)         -> update rule that the program implements
    supports(stages, microbatches, options)     -> None, or the reason for a refusal
    in_flight(stages, microbatches, options)    -> for each stage, the most forwards that await their backward on one
                                                replica
    compile(stages, microbatches, options)      -> Program
    choices(space)                              -> candidates for the planner

`microbatches` is the number of microbatches in a batch. A strategy knows no runtime engine. It knows seconds and bytes
only from the search space for which it proposes candidates.
"""
