"""The journal: events and state of the scheduler as text, replayed exactly."""
