"""The scheduler core: a state machine of events and commands, without clock or I/O."""
