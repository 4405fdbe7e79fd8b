"""Traces: one type for simulated and measured instructions."""
