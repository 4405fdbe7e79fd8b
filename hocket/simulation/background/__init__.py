"""Simulation of a background job beside a plan."""
