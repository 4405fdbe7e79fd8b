"""Rounds: priorities, selection and placement of leases."""
