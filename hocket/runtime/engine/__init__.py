"""Engines: each interprets the same program under the rules of hocket/program/order.py."""
