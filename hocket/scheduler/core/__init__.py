"""Scheduler core: a state machine of events and commands, without clock and I/O."""
