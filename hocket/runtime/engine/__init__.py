"""Engines: interpreters of a program.

Each follows the rules of hocket/program/order.py.
"""
