"""Engines: interpreters of a program, by the rules of hocket/program/order.py."""
